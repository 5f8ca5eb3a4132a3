from recipes import run_recipe
from recipes.words import ABOVE, ACCURACY, CAPSULES, CNN, ENCODER, MOST_ACTIVE, POOLED, TREC


def test_smoke(tmp_path):
    where = {"runs": tmp_path / "runs", "results": tmp_path / "results", "trainer": {"accelerator": "cpu"}}
    result = run_recipe("words", "smoke", **where)
    ours = {(row["row"], row["measure"]): row["ours"] for row in result["rows"] if row["ours"]}
    rows = [f"{TREC}: {network}" for network in (CNN, CAPSULES, ENCODER, POOLED)]
    assert ours.keys() == {(row, measure) for row in rows for measure in (ACCURACY, MOST_ACTIVE, ABOVE)}
    assert all(0 <= value <= 100 for values in ours.values() for value in values)
    assert ours[f"{TREC}: {CNN}", ACCURACY][0] > 80  # the patterns are simple
    for picture in result["pictures"]:
        assert (tmp_path / "results" / picture["file"]).read_bytes().startswith(b"\x89PNG")
    assert [picture["file"] for picture in result["pictures"]] == [
        f"words-smoke-{name}.png"
        for name in (
            "pairs",
            "colours-capsules-form-a",
            "colours-routing-encoder",
            "colours-capsules-of-maxima",
        )
    ]
