# Prints one line for everything that could lead from the start to another commit. Fields are
# separated by tabs. `start` is the starting commit, HEAD if it is not set.
set -eu
LC_ALL=C GIT_NO_REPLACE_OBJECTS=1 GIT_NO_LAZY_FETCH=1 GIT_TERMINAL_PROMPT=0
export LC_ALL GIT_NO_REPLACE_OBJECTS GIT_NO_LAZY_FETCH GIT_TERMINAL_PROMPT
# The repository may belong to another user than the one this runs as.
GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
export GIT_CONFIG_COUNT GIT_CONFIG_KEY_0 GIT_CONFIG_VALUE_0
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES

say() {
    printf 'temper-history\t%s\t%s\t%s\n' "$1" "$2" "$3"
}

start=$(git rev-parse --verify --quiet "${start:-HEAD}^{commit}")
common=$(cd "$(git rev-parse --git-common-dir)" && pwd -P)
own=$(cd "$(git rev-parse --git-dir)" && pwd -P)

git for-each-ref --format='%(objectname) %(refname)' | while read -r object name; do
    case $name in
        refs/heads/*) kind=branch ;;
        refs/remotes/*) kind=remote-branch ;;
        refs/tags/*) kind=tag ;;
        refs/notes/*) kind=note ;;
        refs/stash) kind=stash ;;
        refs/replace/*) kind=replacement ;;
        *) kind=other-ref ;;
    esac
    say "$kind" "$name" "$object"
done

for file in "$own"/*_HEAD "$own"/AUTO_MERGE "$own"/BISECT_START; do
    [ -s "$file" ] || continue
    say pseudo-ref "${file##*/}" "$(sed 's/[[:space:]].*//;1q' "$file")"
done

for logs in "$common/logs" "$own/logs"; do
    [ -d "$logs" ] || continue
    find "$logs" -type f | sort | while IFS= read -r file; do
        [ -s "$file" ] || continue
        say reflog "${file#"$logs"/}" "$(wc -l <"$file" | tr -d ' ')"
    done
    [ "$common" != "$own" ] || break
done

if [ -s "$common/packed-refs" ]; then
    say packed-refs packed-refs "$(grep -c '^[0-9a-f]' "$common/packed-refs" || :)"
fi

# The reflog counts as unreachable here. Damage elsewhere in the repository is not our concern.
git fsck --connectivity-only --unreachable --no-reflogs --no-progress 2>/dev/null |
    awk -v OFS='\t' '
        $1 != "unreachable" { next }
        $2 == "commit" { print "temper-history", "unreachable-commit", "commit", $3; next }
        { n[$2]++ }
        END { for (kind in n) print "temper-history", "unreachable-objects", kind, n[kind] }
    '

ancestors=$(($(git rev-list --count "$start") - 1))
[ "$ancestors" -eq 0 ] || say ancestors "$start" "$ancestors"

for directory in "$common"/worktrees/*; do
    [ ! -d "$directory" ] || say work-tree "${directory##*/}" ""
done

if [ -s "$common/objects/info/alternates" ]; then
    while IFS= read -r store; do
        [ -z "$store" ] || say alternate "$store" ""
    done <"$common/objects/info/alternates"
fi

for directory in "$common"/modules/*; do
    [ ! -d "$directory" ] || say submodule "${directory##*/}" ""
done

git remote | while IFS= read -r name; do
    say remote "$name" ""
done
