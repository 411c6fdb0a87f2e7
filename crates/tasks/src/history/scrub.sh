# Replaces the repository. Runs after the audit, in the same shell.
top=$(git rev-parse --show-toplevel)
top=$(cd "$top" && pwd -P)
cd "$top"

# A repository that lies elsewhere, or borrows from elsewhere, would stay readable there.
if [ -L .git ] || [ ! -d .git ] || [ "$common" != "$top/.git" ]; then
    say elsewhere "$common" ""
    exit 3
fi
if [ -s .git/objects/info/alternates ]; then
    say elsewhere "$(sed -n '1p' .git/objects/info/alternates)" ""
    exit 3
fi

find . -name .git ! -path ./.git -print -prune | while IFS= read -r nested; do
    if [ -f "$nested" ]; then
        # A submodule's pointer into the repository that is about to go.
        rm -f "$nested"
    else
        say nested-repository "$nested" ""
    fi
done

tree=$(git rev-parse --verify "HEAD^{tree}")
commit=$(
    GIT_AUTHOR_NAME=temper GIT_AUTHOR_EMAIL=temper@localhost GIT_AUTHOR_DATE='946684800 +0000' \
    GIT_COMMITTER_NAME=temper GIT_COMMITTER_EMAIL=temper@localhost \
    GIT_COMMITTER_DATE='946684800 +0000' \
        git commit-tree -m start "$tree"
)

new=$top/.git.new
rm -rf "$new"
mkdir "$new"
case ${#commit} in
    40) GIT_DIR=$new git init --quiet --bare --template= ;;
    *) GIT_DIR=$new git init --quiet --bare --template= --object-format=sha256 ;;
esac
printf '%s\n' "$commit" | git pack-objects --revs --stdout --quiet |
    GIT_DIR=$new git index-pack --stdin >/dev/null
for setting in core.fileMode core.symlinks core.ignoreCase core.autocrlf core.eol; do
    if value=$(git config --local --get "$setting"); then
        GIT_DIR=$new git config "$setting" "$value"
    fi
done
GIT_DIR=$new git config core.bare false
GIT_DIR=$new git config user.name agent
GIT_DIR=$new git config user.email agent@localhost
GIT_DIR=$new git config gc.auto 0
GIT_DIR=$new git -c core.logAllRefUpdates=false update-ref refs/heads/main "$commit"
GIT_DIR=$new git -c core.logAllRefUpdates=false symbolic-ref HEAD refs/heads/main
mkdir -p "$new/info"
for file in exclude attributes; do
    [ ! -f ".git/info/$file" ] || cp ".git/info/$file" "$new/info/$file"
done

# Only what the start consists of may be in the new repository, and all of it must be.
GIT_DIR=$new git cat-file --batch-all-objects --batch-check='%(objectname)' | sort >"$new/there"
GIT_DIR=$new git rev-list --objects "$commit" | cut -d' ' -f1 | sort >"$new/wanted"
cmp -s "$new/there" "$new/wanted"
rm -f "$new/there" "$new/wanted"

rm -rf .git
mv "$new" .git
git read-tree "$commit"
# Files that differ from the commit stay as they are; the exit code says only that there are some.
git update-index -q --refresh >/dev/null 2>&1 || :
say "done" "$commit" "$tree"
