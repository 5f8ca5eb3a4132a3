"""When the rows of a series were measured, as people and programs write it."""

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, time

from torchcaps_lab.look import is_number, number_in

Moment = tuple[float | None, float | None]
"""A number by which rows can be sorted, if dates such as 01/02/2024 begin with the day,
and if they begin with the month; None if the date cannot be read so.
"""

BEGINNINGS = ("day", "month")
"""What such dates begin with, in the order of a :data:`Moment`."""

_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec"

_DATES = (
    (r"(?P<year>\d{4})[-/.](?P<month>\d\d?)[-/.](?P<day>\d\d?)",),
    # With points, such dates begin with the day wherever they are written.
    (r"(?P<day>\d\d?)\.(?P<month>\d\d?)\.(?P<year>\d{4}|\d\d)",),
    (
        r"(?P<day>\d\d?)[-/](?P<month>\d\d?)[-/](?P<year>\d{4}|\d\d)",
        r"(?P<month>\d\d?)[-/](?P<day>\d\d?)[-/](?P<year>\d{4}|\d\d)",
    ),
    (r"(\w+,? )?(?P<day>\d\d?)[. -]+(?P<month>[a-z]{3})[a-z]*[., -]+(?P<year>\d{4})",),
    (r"(\w+,? )?(?P<month>[a-z]{3})[a-z]*\.? (?P<day>\d\d?)[., ]+(?P<year>\d{4})",),
)
"""How dates are written, first those with the day first where both are possible."""

_CLOCK = re.compile(
    r"(?P<hour>\d\d?)(?P<rest>:\d\d(:\d\d([.,]\d+)?)?) ?(?P<half>[ap]\.?m\.?)?"
    r" ?(?P<zone>z|utc|gmt|[+-]\d\d:?(\d\d)?)?",
    re.ASCII | re.I,
)


def moment_of(cell: str) -> Moment:
    """Return when a row was measured.

    Args:
        cell: a number, a time of a day, or a date, maybe with a time.

    Raises:
        ValueError: it is none of these.

    Example:
        >>> from torchcaps_lab.kinds.series.moments import moment_of
        >>> moment_of("1.5"), moment_of("1/1/1970 12:01 AM")
        ((1.5, 1.5), (60.0, 60.0))
        >>> moment_of("01/02/1970"), moment_of("13/01/1970")
        ((2678400.0, 86400.0), (1036800.0, None))
    """
    if is_number(cell):
        number = number_in(cell)
        return number, number
    if clock := _CLOCK.fullmatch(cell):
        moment = _seconds(date(1970, 1, 1), clock)
        return moment, moment
    for patterns in _DATES:
        if re.match(patterns[0], cell, re.ASCII | re.I):
            read = [_dated(pattern, cell) for pattern in patterns]
            if any(moment is not None for moment in read):
                return read[0], read[-1]
    moment = _timestamp(datetime.fromisoformat(cell))
    return moment, moment


def _dated(pattern: str, cell: str) -> float | None:
    """The seconds of a date of some form, maybe with a time; None if it has another."""
    match = re.match(pattern, cell, re.ASCII | re.I)
    assert match is not None
    year, month, day = match["year"], match["month"].lower(), int(match["day"])
    of_day = cell[match.end() :].lstrip("T,. ")
    clock = _CLOCK.fullmatch(of_day or "0:00")
    try:
        number = int(month) if month.isdigit() else 1 + _MONTHS.index(month) // 4
        # As POSIX reads two digits.
        full = int(year) if len(year) == 4 else 1969 + (int(year) - 69) % 100
        return None if clock is None else _seconds(date(full, number, day), clock)
    except ValueError:
        return None


def _seconds(day: date, clock: re.Match[str]) -> float:
    """The seconds of a day and a time; a `ValueError` if there is no such time."""
    hour = int(clock["hour"])
    if clock["half"]:
        if not 1 <= hour <= 12:
            raise ValueError(f"expected an hour from 1 to 12, got {hour}")
        hour = hour % 12 + 12 * (clock["half"][0].lower() == "p")
    zone = (clock["zone"] or "").upper()
    zone = "+00:00" if zone in ("Z", "UTC", "GMT") else zone
    of_day = time.fromisoformat(f"{hour:02}{clock['rest']}{zone}")
    return _timestamp(datetime.combine(day, of_day))


def _timestamp(moment: datetime) -> float:
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def dates_begin_with(series: Sequence[Sequence[Moment]], what: str) -> int:
    """Return what the dates of a table begin with, as a place in :data:`BEGINNINGS`:
    with what all of them can be read, or with either if the rows of each series come in
    the same order.

    Args:
        series: the moments of the rows of each series.
        what: the column, for messages.

    Raises:
        ValueError: some dates can only begin with the day and others only with the
            month, or it is not clear and orders rows differently.

    Example:
        >>> from torchcaps_lab.kinds.series.moments import dates_begin_with, moment_of
        >>> days = ["02/01/2024", "03/01/2024", "04/01/2024"]
        >>> dates_begin_with([[*map(moment_of, days)]], "day")
        0
        >>> days = ["01/12/2024", "01/13/2024"]
        >>> dates_begin_with([[*map(moment_of, days)]], "day")
        1
    """
    possible = [
        place
        for place in range(len(BEGINNINGS))
        if all(moment[place] is not None for rows in series for moment in rows)
    ]
    advice = "write them as 2024-01-31, or, if the rows are in order: --data.time null"
    if not possible:
        raise ValueError(
            f"dates in {what} must all begin with the day, or all with the month, and "
            f"some have a first and others a second number above 12: {advice}"
        )
    orders = [[_order(rows, place) for rows in series] for place in possible]
    if orders[0] != orders[-1]:
        raise ValueError(
            f"dates in {what} may begin with the day or with the month, as 01/02/2024 "
            f"does, and rows would be in another order: {advice}"
        )
    return possible[0]


def _order(rows: Sequence[Moment], place: int) -> list[int]:
    """The rows in the order of one of the two readings."""
    return sorted(range(len(rows)), key=lambda row: rows[row][place] or 0.0)
