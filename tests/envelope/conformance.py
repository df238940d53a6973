"""The conformance suite of BabelQueue, from the source distribution of the published Python SDK.

It is fetched once per checkout, into `.cache/`, and is not ours to commit.
"""

import json
import subprocess
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

VERSION = "1.24.0"
CODEC = {
    "cases": 8,
    "roundtrip": 9,
    "data_shape": 2,
    "forbidden_keys": 7,
    "extension_write": 5,
    "encode_reject": 13,
    "trim": 35,
    "job_type": 11,
    "identity_verdict": 97,
    "poison_dlq": 43,
    "payload_schema": 7,
    "payload_schema_unicode": 6,
    "retry_backoff": 18,
}
"""Section → cases, of the sections that a codec has to pass."""
_CACHE = Path(__file__).parents[2] / ".cache" / f"babelqueue-{VERSION}"


@cache
def suite() -> Path:
    """The folder with `manifest.json`, `fixtures/` and `schema/`."""
    if not _CACHE.exists():
        _fetch()
    return _CACHE / "tests" / "conformance"


@cache
def manifest() -> dict[str, Any]:
    """The parsed manifest."""
    parsed: dict[str, Any] = json.loads((suite() / "manifest.json").read_text(encoding="utf-8"))
    return parsed


def fixture(name: str) -> bytes:
    """The bytes of a fixture, by the `file` of its case."""
    return (suite() / name).read_bytes()


def cases(section: str) -> list[tuple[str, dict[str, Any]]]:
    """The cases of a section with their ids: the name, or else the section and the index."""
    content = manifest()[section]
    listed = content if isinstance(content, list) else content["cases"]
    return [(case.get("name") or f"{section}#{index}", case) for index, case in enumerate(listed)]


def ids(section: str) -> list[str]:
    """The ids of the cases of a section."""
    return [case_id for case_id, _ in cases(section)]


def _fetch() -> None:
    _CACHE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_CACHE.parent) as folder:
        wanted = f"babelqueue=={VERSION}"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-binary", ":all:", "--no-deps"]
        subprocess.run([*pip, "--dest", folder, wanted], check=True)
        [archive] = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        [unpacked] = (entry for entry in Path(folder).iterdir() if entry.is_dir())
        if not _CACHE.exists():
            unpacked.rename(_CACHE)
