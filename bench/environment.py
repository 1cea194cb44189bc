"""What a run was made on and with: device, driver, libraries, package, commit; no people, no paths."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any


def environment(
    device: Any, kind: str, *, commit: str | None = None, dirty: bool | None = None, name: str | None = None
) -> dict[str, Any]:
    """The first record of a file.

    Parameters
    ----------
    device
        The TVM device that runs the kernels.
    kind
        Its target kind.
    commit, dirty
        Of the checkout; asked from git where they are None.
    name
        Of the device; asked from it where it is None.
    """
    import tvm
    import tvm_ffi

    if commit is None:
        commit, seen_dirty = checkout()
        dirty = seen_dirty if dirty is None else dirty
    return {
        "device": name or device_name(device, kind),
        "driver": driver(device, kind),
        "target_kind": kind,
        "cache_bytes": int(getattr(device, "l2_cache_size_bytes", None) or 0) if kind == "cuda" else 0,
        "tvm": str(tvm.__version__),
        "libraries": libraries(),
        "library_sha256": library_digests(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "package_sha256": package_digest(),
        "tvm_ffi": str(tvm_ffi.__version__),
        "commit": commit or "unknown",
        "dirty": True if dirty is None else dirty,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def device_name(device: Any, kind: str) -> str:
    """The device's own name; the processor's for the CPU."""
    if kind not in ("cuda", "metal"):
        return f"{kind} on {platform.machine()}"
    return str(device.device_name)


def driver(device: Any, kind: str) -> str:
    """Version of the driver, or of the system that holds it."""
    if kind == "metal":
        return f"macOS {platform.mac_ver()[0] or 'unknown'}"
    if kind != "cuda":
        return "none"
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=30).stdout
        return found.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return f"CUDA {getattr(device, 'driver_version', None) or 'unknown'}"


def libraries() -> dict[str, str]:
    """Versions of what generates, compiles, launches and judges."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in (
        "apache-tvm",
        "apache-tvm-ffi",
        "numpy",
        "torch",
        "triton",
        "cuda-bindings",
        "nvidia-cuda-nvrtc",
    ):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@lru_cache(maxsize=1)
def library_digests() -> dict[str, str]:
    """SHA-256 of TVM's shared libraries by file name."""
    import tvm

    folder = Path(str(tvm.__file__)).parent / "lib"
    names = sorted(p for p in folder.glob("*") if p.suffix in (".so", ".dylib", ".dll"))
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in names}


@lru_cache(maxsize=1)
def package_digest() -> str:
    """SHA-256 over all files of this package, by name and content."""
    total = hashlib.sha256()
    for name, sha256 in sorted(package_files().items()):
        total.update(f"{name} {sha256}\n".encode())
    return total.hexdigest()


def package_files() -> dict[str, str]:
    """SHA-256 of each source file of this package, by path inside it."""
    import tirx_reduce

    root = Path(str(tirx_reduce.__file__)).parent
    found = {}
    for folder in (root, *(root / room for room in ("cost", "schedules", "bench", "emulator"))):
        for path in sorted(folder.glob("*")):
            if path.suffix in (".py", ".h", ".hpp", ".cc", ".cpp"):
                found[str(path.relative_to(root))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def checkout() -> tuple[str | None, bool | None]:
    """Commit and dirty flag of the checkout that this package lies in; None and None where there is none."""
    here = Path(__file__).resolve().parent
    try:
        commit = _git(here, "rev-parse", "HEAD").strip()
        dirty = bool(_git(here, "status", "--porcelain", "--untracked-files=no").strip())
    except (OSError, subprocess.SubprocessError):
        return None, None
    return commit, dirty


def _git(folder: Path, *arguments: str) -> str:
    asked = ["git", "-C", str(folder), *arguments]
    return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=30).stdout
