"""Lays the start of a task into a directory: fetches its archive by name and hash, unpacks it, and
makes one commit of it. Runs while the image is built, in a stage of its own, because the archive
also holds the fix and the hidden tests.

build.py TARGET, with plan.json, start.patch, archives/ and start/ beside it, as far as they exist.
"""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.parse
import urllib.request
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
INDEX = os.environ.get("INDEX", "https://pypi.org/simple").rstrip("/")
ACCEPT = "application/vnd.pypi.simple.v1+json"


def get(url, accept=None):
    for attempt in range(3):
        try:
            request = urllib.request.Request(url, headers={"Accept": accept} if accept else {})
            with urllib.request.urlopen(request, timeout=180) as response:
                return response.geturl(), response.read()
        except OSError:
            if attempt == 2:
                raise
            time.sleep(1 + attempt)


def fetch(archive):
    local = HERE / "archives" / archive["file_name"]
    if local.is_file():
        content = local.read_bytes()
    else:
        base, page = get(f"{INDEX}/{archive['project']}/", ACCEPT)
        files = [f for f in json.loads(page)["files"] if f["filename"] == archive["file_name"]]
        if not files:
            sys.exit(f"{INDEX} has no {archive['file_name']}")
        _, content = get(urllib.parse.urljoin(base, files[0]["url"]))
    got = hashlib.sha256(content).hexdigest()
    if got != archive["sha256"]:
        sys.exit(f"{archive['file_name']}: expected SHA-256 {archive['sha256']}, got {got}")
    return content


def unpack(name, content, into):
    """The content of the archive's single top directory."""
    with tempfile.TemporaryDirectory() as work:
        packed = pathlib.Path(work, "packed")
        packed.write_bytes(content)
        out = pathlib.Path(work, "out")
        if name.endswith(".zip"):
            with zipfile.ZipFile(packed) as archive:
                archive.extractall(out)
        else:
            with tarfile.open(packed) as archive:
                archive.extractall(out, filter="data")
        (top,) = out.iterdir()
        shutil.copytree(top, into, symlinks=True, dirs_exist_ok=True)


def git(target, *arguments):
    fixed = {}
    for who in ("AUTHOR", "COMMITTER"):
        fixed[f"GIT_{who}_NAME"] = "temper"
        fixed[f"GIT_{who}_EMAIL"] = "temper@localhost"
        fixed[f"GIT_{who}_DATE"] = "946684800 +0000"
    subprocess.run(["git", *arguments], cwd=target, env={**os.environ, **fixed}, check=True)


def main():
    target = pathlib.Path(sys.argv[1])
    plan = json.loads((HERE / "plan.json").read_text())
    target.mkdir(parents=True, exist_ok=True)
    if plan["archive"]:
        unpack(plan["archive"]["file_name"], fetch(plan["archive"]), target)
    else:
        shutil.copytree(HERE / "start", target, symlinks=True, dirs_exist_ok=True)
    git(target, "init", "--quiet", "--template=", "--initial-branch=main")
    # Attributes of the repository must not rewrite line ends or expand keywords.
    attributes = target / ".git" / "info" / "attributes"
    attributes.parent.mkdir(exist_ok=True)
    attributes.write_text("* -text -filter -ident -working-tree-encoding\n")
    patch = HERE / "start.patch"
    if patch.exists():
        git(target, "apply", "--whitespace=nowarn", "-p1", str(patch))
    git(target, "add", "--all", "--force", ".")
    git(target, "commit", "--quiet", "--allow-empty", "--no-verify", "--message=start")


main()
