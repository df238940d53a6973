"""Draw the rooms of the package by their imports: each stands above all that it imports."""

from __future__ import annotations

from functools import cache

import grimp

from scripts.svg import arrow, box, picture

PACKAGE = "babelqueue_spark"
_APART = {"needs_spark", "testing"}
"""A check at import, and what tests of users import."""
_WIDTH, _STEP, _BOX = 860, 74, 40


@cache
def imports() -> dict[str, set[str]]:
    """Find room → the rooms that it imports; a room is a folder or a module at the top of the package."""
    graph = grimp.build_graph(PACKAGE, exclude_type_checking_imports=True, cache_dir=None)
    rooms = {each.removeprefix(f"{PACKAGE}.") for each in graph.find_children(PACKAGE)} - _APART
    found: dict[str, set[str]] = {room: set() for room in rooms}
    for room in rooms:
        for other in rooms - {room}:
            if graph.direct_import_exists(
                importer=f"{PACKAGE}.{room}", imported=f"{PACKAGE}.{other}", as_packages=True
            ):
                found[room].add(other)
    return found


def floors() -> dict[str, int]:
    """Find room → its floor: 0 where it imports no other."""

    @cache
    def floor(room: str) -> int:
        return max((floor(other) + 1 for other in imports()[room]), default=0)

    return {room: floor(room) for room in imports()}


def needed() -> list[tuple[str, str]]:
    """Return the imports that no chain of others implies."""

    @cache
    def reached(room: str) -> frozenset[str]:
        return frozenset(imports()[room]).union(*(reached(other) for other in imports()[room]))

    return sorted(
        (room, other)
        for room, others in imports().items()
        for other in others
        if not any(other in reached(between) for between in others - {other})
    )


def rooms() -> str:
    """Draw the map: importers above, what they import below."""
    floor_of = floors()
    top = max(floor_of.values())
    places: dict[str, tuple[int, int, int]] = {}
    for floor in range(top + 1):
        row = sorted(room for room in floor_of if floor_of[room] == floor)
        width = min(190, (_WIDTH - 24) // len(row) - 24)
        left = (_WIDTH - len(row) * (width + 24) + 24) // 2
        for number, room in enumerate(row):
            places[room] = (left + number * (width + 24), 24 + (top - floor) * _STEP, width)
    lines = []
    for room, other in needed():
        (x, y, width), (to_x, to_y, to_width) = places[room], places[other]
        lines.append(arrow(f"M{x + width // 2} {y + _BOX} L{to_x + to_width // 2} {to_y - 3}"))
    boxes = [box(x, y, width, _BOX, "plain", room) for room, (x, y, width) in sorted(places.items())]
    height = 24 + (top + 1) * _STEP
    return picture("rooms", _WIDTH, height, "The rooms of the package, above what they import", lines + boxes)
