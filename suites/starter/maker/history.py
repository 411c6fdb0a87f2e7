"""Putting single changes of a release back to how an older release had them."""

import difflib


def changes(older, newer):
    """The changed regions between two texts, as (older start, older end, newer start, newer end) in
    lines, counted from zero. Regions fewer than three unchanged lines apart are one change."""
    matcher = difflib.SequenceMatcher(None, older.splitlines(), newer.splitlines(), autojunk=False)
    merged = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            continue
        if merged and j1 - merged[-1][3] < 3 and i1 - merged[-1][1] < 3:
            merged[-1] = (merged[-1][0], i2, merged[-1][2], j2)
        else:
            merged.append((i1, i2, j1, j2))
    return merged


def put_back(older, newer, chosen):
    """The newer text with the changes numbered in `chosen` undone."""
    old_lines, new_lines = older.splitlines(keepends=True), newer.splitlines(keepends=True)
    regions = changes(older, newer)
    for number in sorted(chosen, reverse=True):
        i1, i2, j1, j2 = regions[number]
        new_lines[j1:j2] = old_lines[i1:i2]
    return "".join(new_lines)
