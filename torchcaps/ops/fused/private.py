"""Folders and files that no other user can change, so that what is loaded from them is
what this user put there.
"""

import errno
import grp
import os
import pwd
import stat
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotPrivate(RuntimeError):
    """Another user may have written, or may yet write, what would be trusted."""


def make_private(folder: Path) -> None:
    """Makes a folder, and those that it lies in, unless they exist, and checks each of
    them from the root on.

    The folder must belong to this user, and nobody else may write to it. A folder or a
    link on the way to it must belong to this user or to root. Others may write to a
    folder on the way if it is sticky: there, nobody renames what belongs to somebody
    else. So nobody else can change what was checked before.

    Raises:
        NotPrivate: another user has a say in it; names the folder or link.
        OSError: the folder cannot be made.
    """
    place, names = Path(), [*reversed(folder.absolute().parts)]
    while names:
        path = place / names.pop()
        if not os.path.lexists(path):
            path.mkdir(0o700, exist_ok=True)
        facts = path.lstat()
        if facts.st_uid not in (0, os.geteuid()):
            raise NotPrivate(f"{path} belongs to another user")
        if stat.S_ISLNK(facts.st_mode):
            # Refuses links in a circle.
            path.stat()
            names += reversed(path.readlink().parts)
            continue
        if not stat.S_ISDIR(facts.st_mode):
            raise NotADirectoryError(f"{path} is not a folder")
        place = path
        if _others_write(facts) and not facts.st_mode & stat.S_ISVTX:
            raise NotPrivate(f"other users may write to {path}")
    if facts.st_uid != os.geteuid():
        raise NotPrivate(f"{place} belongs to another user")
    if facts.st_mode & _OTHERS_WRITE:
        raise NotPrivate(f"other users may write to {place}")


def open_private(path: Path, flags: int) -> int:
    """Opens a regular file that belongs to this user and that nobody else may write to;
    returns its descriptor. Links are not followed.

    Raises:
        NotPrivate: it is another file; names it.
        OSError: it cannot be opened.
    """
    # A pipe would wait for another process.
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        handle = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPrivate(f"{path} is a link") from None
        raise
    facts = os.fstat(handle)
    if (
        stat.S_ISREG(facts.st_mode)
        and facts.st_uid == os.geteuid()
        and not facts.st_mode & _OTHERS_WRITE
    ):
        return handle
    os.close(handle)
    raise NotPrivate(f"{path} is not a file that only this user may write to")


def _others_write(facts: os.stat_result) -> bool:
    """Whether others than the owner may write; a group of this user alone, which many
    systems give to each user, is not others.
    """
    if facts.st_mode & stat.S_IWOTH:
        return True
    return bool(facts.st_mode & stat.S_IWGRP) and not _is_own_group(facts.st_gid)


def _is_own_group(group_id: int) -> bool:
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
        group = grp.getgrgid(group_id)
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}
