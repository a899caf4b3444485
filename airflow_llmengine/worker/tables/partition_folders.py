"""Hive partitions: folders named ``column=value``, whose values are columns of all rows in the files below."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

import pyarrow

from airflow_llmengine.worker.readers.errors import InputInvalidError
from airflow_llmengine.worker.tables.row_templates import shown

NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""How the name of a folder says null."""

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
"""A whole number as it is written without anything to lose: 01 is a text."""


def partition_values(names: Sequence[str]) -> list[dict[str, str | None]]:
    """For each file the values that its folders give, as text.

    Args:
        names: The files' paths below the input's root.

    Raises:
        InputInvalidError: Not all of them have the same partitions.
    """
    found = [_values(name) for name in names]
    for name, values in zip(names, found, strict=True):
        if list(values) != list(found[0]):
            raise InputInvalidError(
                f"{name} lies in the partitions {_listed(values)}, and {names[0]} in {_listed(found[0])}: with "
                "partitioning, all files of a table have the same."
            )
    if not found or not found[0]:
        raise InputInvalidError(
            "No folder of the input is named column=value: leave partitioning out, or give the folder above those as "
            "input_data_path."
        )
    return found


def partition_types(values: Sequence[Mapping[str, str | None]]) -> dict[str, pyarrow.DataType]:
    """The partition columns with their types: 64-bit integers where all values are whole numbers, else strings."""
    types = {}
    for name in values[0] if values else ():
        given = {file[name] for file in values} - {None}
        whole = bool(given) and all(value is not None and _INTEGER.fullmatch(value) for value in given)
        types[name] = pyarrow.int64() if whole else pyarrow.string()
    return types


def _values(name: str) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for folder in name.split("/")[:-1]:
        written, is_partition, said = folder.partition("=")
        if not is_partition or not written:
            continue
        try:
            column, value = unquote(written, errors="strict"), unquote(said, errors="strict")
            (column + value).encode()
        except UnicodeError:
            raise InputInvalidError(
                f"The name of the folder {shown(folder)} is not UTF-8: give it another name, or leave partitioning out."
            ) from None
        if column in values:
            raise InputInvalidError(
                f"{shown(name)} lies in two folders that give the column {shown(column)}: leave partitioning out, or "
                "give one of them another name."
            )
        values[column] = None if said == NULL_VALUE else value
    return values


def _listed(values: Mapping[str, str | None]) -> str:
    return ", ".join(map(shown, values)) or "none"
