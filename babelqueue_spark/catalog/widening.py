"""How a table's columns change when its schema does: what is new is added, nothing else."""

from collections.abc import Iterator

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from babelqueue_spark.errors import CatalogError


def widened(old: StructType, new: StructType, table: str) -> StructType:
    """Return the columns of `old`, and those that `new` has besides, within columns too.

    A column that `new` lacks stays. Columns may be null.

    Raises:
        CatalogError: a column has another type in `new`.
    """
    return _struct(old, new, table, ())


def additions(old: StructType, new: StructType) -> Iterator[tuple[tuple[str, ...], DataType]]:
    """Path and type of each column that `new`, which was widened, has besides those of `old`."""
    yield from _added(old, new, ())


def _struct(old: StructType, new: StructType, table: str, path: tuple[str, ...]) -> StructType:
    names = {field.name.lower(): field for field in new}
    fields = []
    for field in old:
        now = names.pop(field.name.lower(), None)
        if now is not None and now.name != field.name:
            raise CatalogError(
                f"{table} has a column {'.'.join((*path, field.name))}, but its schema says {now.name} now, "
                "which is the same name to Spark: write to another place"
            )
        kind = (
            field.dataType if now is None else _type(field.dataType, now.dataType, table, (*path, field.name))
        )
        fields.append(StructField(field.name, kind))
    return StructType([*fields, *(StructField(field.name, field.dataType) for field in names.values())])


def _type(old: DataType, new: DataType, table: str, path: tuple[str, ...]) -> DataType:
    if isinstance(old, StructType) and isinstance(new, StructType):
        return _struct(old, new, table, path)
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return ArrayType(_type(old.elementType, new.elementType, table, (*path, "element")))
    if isinstance(old, MapType) and isinstance(new, MapType):
        return MapType(old.keyType, _type(old.valueType, new.valueType, table, (*path, "value")))
    if old != new:
        raise CatalogError(
            f"{table} has {'.'.join(path)} as {old.simpleString()}, but its schema says {new.simpleString()} "
            "now: give the new payload a URN of its own, or write to another place"
        )
    return old


def _added(old: DataType, new: DataType, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], DataType]]:
    if isinstance(old, StructType) and isinstance(new, StructType):
        for field in new:
            place = (*path, field.name)
            if field.name in old.fieldNames():
                yield from _added(old[field.name].dataType, field.dataType, place)
            else:
                yield place, field.dataType
    elif isinstance(old, ArrayType) and isinstance(new, ArrayType):
        yield from _added(old.elementType, new.elementType, (*path, "element"))
    elif isinstance(old, MapType) and isinstance(new, MapType):
        yield from _added(old.valueType, new.valueType, (*path, "value"))
