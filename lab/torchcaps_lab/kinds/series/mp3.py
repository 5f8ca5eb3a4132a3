"""Finds out how well the length of an MP3 is known before it is decoded."""

from pathlib import Path

from torchcaps.whole import LARGEST_TABLE, read_bytes

_FRAME = 1152
"""Samples of a frame, at most."""

_MARKED = 192
"""Bytes of an MP3 within which the mark of a stated length begins, at most 36 bytes
after the header of a frame.
"""

_KILOBITS = (
    (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
)
"""Bitrates of layer III by the number in a header, from 1: of MPEG 2 and 2.5, and of
MPEG 1.
"""

_HERTZ = {
    3: (44_100, 48_000, 32_000),
    2: (22_050, 24_000, 16_000),
    0: (11_025, 12_000, 8_000),
}
"""Sampling rates by the version of MPEG, as in a header."""

_TAGS = (b"TAG", b"APETAGEX")
"""What a tag after the last frame begins with."""


def error_of_length(path: Path) -> int:
    """Return how many samples fewer an MP3 may hold than libsndfile finds: none if its
    first frame states how many frames follow, and less than a frame if all frames have
    one bitrate, so that the size of the file tells the length.

    Raises:
        ValueError: its length is not known.

    Source: id3.org, "ID3v2.4.0, main structure", 3.1, for the length of the tag, and
    ISO/IEC 11172-3, 2.4.2.3, for the header of a frame.
    """
    content = read_bytes(path, LARGEST_TABLE)
    start = 0
    if content.startswith(b"ID3") and len(content) >= 10:
        for byte in content[6:10]:
            start = start << 7 | byte & 127
        start += 10
    first = content[start : start + _MARKED]
    if any(mark in first for mark in (b"Xing", b"Info", b"VBRI")):
        return 0
    if _has_one_bitrate(content, start):
        return _FRAME
    raise ValueError(
        "it is an MP3 that does not state its length, and whose frames are not of one "
        "bitrate: its length can only be estimated, so convert it to .wav or .flac"
    )


def _has_one_bitrate(content: bytes, place: int) -> bool:
    """Whether all frames from a place to the end have one bitrate."""
    kinds = set()
    while place + 4 <= len(content) and not content.startswith(_TAGS, place):
        header = int.from_bytes(content[place : place + 4])
        version, layer = header >> 19 & 3, header >> 17 & 3
        bitrate, rate, padding = header >> 12 & 15, header >> 10 & 3, header >> 9 & 1
        known = version in _HERTZ and layer == 1 and 0 < bitrate < 15 and rate < 3
        if header >> 21 != 0x7FF or not known:
            return False
        bits = 1000 * _KILOBITS[version == 3][bitrate - 1]
        place += (144 if version == 3 else 72) * bits // _HERTZ[version][rate] + padding
        kinds.add((version, bitrate, rate))
    return len(kinds) == 1
