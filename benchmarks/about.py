"""The routings of the library in words: the rows of ``python -m benchmarks routings``."""

from dataclasses import dataclass


@dataclass(frozen=True)
class About:
    """A routing in words: its rows in the tables of ``python -m benchmarks routings``.

    Symbols: children I, parents J, child dimension P, numbers of a vote H, steps r, and
    V = I J P H, the multiply-adds of forming all votes of an example once.

    Args:
        similarity: how well a vote fits its parent.
        update: how a step estimates the parents.
        activation: what the activation of a parent is.
        parameters: those of the routing itself, beside the layer's transforms, as a
            formula, or none.
        cost: multiply-adds of the forward pass for one example.
        memory: numbers that are kept for the backward pass for one example, besides
            inputs and parents.
        source: the authors and the year.
        reported: the figures of the authors. A percentage without a word is a test
            error.
    """

    similarity: str
    update: str
    activation: str
    parameters: str
    cost: str
    memory: str
    source: str
    reported: str


ABOUT = {
    "attention": About(
        similarity="inner product with the parent",
        update="layer normalisation of the sum of the votes",
        activation="length of the pose, or a readout of it",
        parameters="2 H, and H + 1 for the readout",
        cost="(2 r - 1) V",
        memory="none",
        source="Tsai et al. 2020",
        reported="CIFAR-10 5.15 %, CIFAR-100 23.73 %",
    ),
    "degree_centrality": About(
        similarity="degree among the votes for one parent, with a softmax over the children",
        update="squashed sum of the votes",
        activation="length of the pose",
        parameters="none",
        cost="3 V + 3 I J H",
        memory="I J",
        source="Venkataraman, Balasubramanian & Sarma 2020",
        reported="not known to us",
    ),
    "dynamic": About(
        similarity="inner product with the sum of the poses so far",
        update="squashed sum of the votes",
        activation="length of the pose",
        parameters="none, or J H with a bias",
        cost="(2 r - 1) V",
        memory="none",
        source="Sabour, Frosst & Hinton 2017",
        reported="MNIST 0.25 %, MultiMNIST 5.2 %",
    ),
    "em": About(
        similarity="Gaussian likelihood and activation",
        update="mean and variance of the votes",
        activation="logistic function of the cost of the votes",
        parameters="2 J",
        cost="r V + 4 r I J H",
        memory="none",
        source="Hinton, Sabour & Frosst 2018",
        reported="smallNORB 1.8 %",
    ),
    "euclidean": About(
        similarity="negative squared distance",
        update="mean of the votes",
        activation="length of the pose",
        parameters="none",
        cost="r V + 3 r I J H",
        memory="none",
        source="Su 2018",
        reported="none",
    ),
    "fast_kernel_density": About(
        similarity="Epanechnikov kernel of the distance",
        update="mean of the votes",
        activation="density at the pose",
        parameters="none",
        cost="(r + 1) V + r (r + 1) I J H",
        memory="none",
        source="Zhang, Zhao, Wu & Zhou 2018",
        reported="nearly 40 % less time than earlier routings",
    ),
    "hard_kmeans": About(
        similarity="squared distance, or inner product",
        update="mean, or sum, of the votes that chose it",
        activation="length of the pose",
        parameters="none",
        cost="r V + 3 r I J H",
        memory="none",
        source="Lloyd 1982; Su 2018",
        reported="none, because it does not train",
    ),
    "heinsen_2019": About(
        similarity="Gaussian likelihood and score",
        update="mean and variance of the votes",
        activation="benefit of the children it uses, minus the cost of those it ignores",
        parameters="I J (H + 2)",
        cost="2 r V + 5 r I J H",
        memory="r I J",
        source="Heinsen 2019",
        reported="smallNORB 0.9 %",
    ),
    "heinsen_2022": About(
        similarity="inner product of the child and what the parent predicts",
        update="sum of the votes, weighted by net benefit or cost",
        activation="length of the pose, or the pose itself if it is one number",
        parameters="I (P + 1) + 4 I J and 2 J P + 2 P H + J (P + H) for all transforms",
        cost="(2 r - 1) I J P + r J P H",
        memory="3 r I J",
        source="Heinsen 2022",
        reported="ImageNet, IMDB and others on top of pretrained networks",
    ),
    "homogeneous": About(
        similarity="none",
        update="normalised sum of the children with elementwise weights, and ReLU",
        activation="length of the pose",
        parameters="I J H + H for all transforms",
        cost="I J H",
        memory="none",
        source="Byerly, Kalganova & Dear 2021",
        reported="MNIST about 0.2 %, 0.13 % with an ensemble",
    ),
    "interests": About(
        similarity="inner product with the sum of the poses so far, from learned parents",
        update="squashed sum of the votes",
        activation="length of the pose",
        parameters="J H",
        cost="2 r V",
        memory="r I J",
        source="Li et al. 2019",
        reported="Recall@50 of Amazon Books 7.6 %",
    ),
    "kernel_density": About(
        similarity="sum of one minus the squared distance of squashed vectors over the steps",
        update="squashed mean of the votes",
        activation="length of the pose",
        parameters="none",
        cost="r V + 4 r I J H",
        memory="none",
        source="Zhao et al. 2019",
        reported="EUR-Lex precision at 1 of 80.6 %",
    ),
    "kmeans": About(
        similarity="inner product with the direction of the centre",
        update="sum of the votes, squashed at the end",
        activation="length of the pose",
        parameters="none",
        cost="(2 r - 1) V",
        memory="none",
        source="Su 2018",
        reported="two digits, one above the other, after training on single ones: over 95 % found",
    ),
    "max_min": About(
        similarity="as in dynamic routing, with shares scaled from 0 to 1 instead of a softmax",
        update="squashed sum of the votes",
        activation="length of the pose",
        parameters="none",
        cost="r V + 2 r I J H",
        memory="none",
        source="Zhao et al. 2019",
        reported="MNIST 0.20 %",
    ),
    "mean": About(
        similarity="none",
        update="mean of the votes",
        activation="length of the pose",
        parameters="none",
        cost="V",
        memory="none",
        source="Paik, Kwak & Kim 2019",
        reported="the routings they compared were no better",
    ),
    "prototypes": About(
        similarity="negative squared distance to a learned prototype",
        update="mean of the votes",
        activation="share of the children",
        parameters="J H",
        cost="V + 3 I J H",
        memory="none",
        source="Everett, Zhong & Leontidis 2023",
        reported="runs on Imagewoof",
    ),
    "self_attention": About(
        similarity="inner product with the sum of all votes",
        update="squashed sum of the votes, with a prior added after the softmax",
        activation="length of the pose",
        parameters="I J",
        cost="4 V",
        memory="none",
        source="Mazzia, Salvetti & Chiaberge 2021",
        reported="MNIST 0.26 %, smallNORB 2.54 %",
    ),
    "self_routing": About(
        similarity="none, a linear map of the child decides",
        update="mean of the votes",
        activation="share of the children",
        parameters="I J (P + 1)",
        cost="V + I J (P + H)",
        memory="2 I J",
        source="Hahn, Pyeon & Kim 2019",
        reported="CIFAR-10 about 7.9 %",
    ),
    "slots": About(
        similarity="inner product with a projection of the slot",
        update="GRU cell and MLP of the mean of the votes",
        activation="share of the children",
        parameters="(2 P + H) H, 6 H² of the GRU, 4 H² of the MLP, J H of the start",
        cost="2 r I J P + r J (2 P H + 11 H²)",
        memory="I P",
        source="Locatello et al. 2020",
        reported="CLEVR6 98.8 FG-ARI, recalled",
    ),
    "slot_mixture": About(
        similarity="Gaussian likelihood and share of the children",
        update="GRU cell and MLP of the mean of the votes, and their variance",
        activation="share of the children",
        parameters="P H, 6 H² of the GRU, 10 H² of the MLPs, J H of the start",
        cost="r V + 4 r I J H + (10 r + 6) J H²",
        memory="I P",
        source="Kirilenko et al. 2024",
        reported="other data",
    ),
    "sparse_attention": About(
        similarity="inner product with the sum of all votes, with entmax instead of a softmax",
        update="squashed sum of the votes",
        activation="length of the pose",
        parameters="none",
        cost="2 V + 2 I J H",
        memory="none",
        source="Geng et al. 2024",
        reported="a network of 110,000 parameters",
    ),
    "spectral": About(
        similarity="none",
        update="first singular vector of the votes",
        activation="logistic function of its share of the variance",
        parameters="J",
        cost="2 V + I J H^2",
        memory="J H^2",
        source="Bahadori 2018",
        reported="not known to us",
    ),
    "variational_bayes": About(
        similarity="expected Gaussian likelihood under Normal-Wishart parents",
        update="posterior of mean and precision",
        activation="logistic function of the entropy, normalised over the batch",
        parameters="2 J",
        cost="r V + 4 r I J H",
        memory="none",
        source="Ribeiro, Leontidis & Kollias 2020",
        reported="smallNORB 1.6 % (recalled), 1.3 % in the README of their code",
    ),
}
"""By the name of the routing."""
