//! Which code and which statements are one, on code as libraries have it.

use std::sync::Arc;

use temper_core::{Entry, Tree, TreePath, patch, tree::Changes};

use super::*;

/// A function that is long enough to be compared with names left out.
const CLONE: &str = r#"
def parse_header(line, strict=False):
    """Read one header line."""
    name, separator, value = line.partition(b":")
    if not separator or name.strip() != name:
        raise ValueError("not a header: {!r}".format(line))
    parameters = {}
    for part in value.split(b";")[1:]:
        key, _, text = part.strip().partition(b"=")
        if strict and key in parameters:
            raise ValueError("twice", 17)
        if len(text) >= 2 and text[:1] == text[-1:] == b'"':
            text = text[1:-1]
        parameters[key.lower()] = text
    return name.lower(), value.split(b";")[0].strip(), parameters
"#;

/// Bodies that libraries which never met have in common.
const BOILERPLATE: [(&str, &str); 4] = [
    (
        "
class A:
    def __init__(self, name, parent=None, children=None):
        self.name = name
        self.parent = parent
        self.children = children or []
",
        "
class B:
    def __init__(self, name, value=None, children=None):
        self.name = name
        self.value = value
        self.children = children or []
",
    ),
    (
        "
class A:
    @property
    def parent(self):
        return self._parent
",
        "
class B:
    @property
    def parent(self):
        return self._parent
",
    ),
    (
        "
class A:
    def __repr__(self):
        return '%s(%r)' % (self.__class__.__name__, self.name)
",
        "
class B:
    def __repr__(self):
        return '%s(%r)' % (self.__class__.__name__, self.value)
",
    ),
    (
        "
class A:
    def describe_to(self, description):
        description.append_text('one of ').append_description_of(self.matcher)
",
        "
class B:
    def describe_to(self, description):
        description.append_text('none of ').append_description_of(self.length)
",
    ),
];

fn file(content: &str) -> Entry {
    Entry::File {
        content: content.into(),
        executable: false,
    }
}

/// A task of its own project whose fix turns `broken` into `fixed`, with the tree that it starts at.
fn located(id: &str, path: &str, fixed: &str, broken: &str) -> (Task, Tree) {
    assert_ne!(fixed, broken);
    let project = format!("project-of-{id}");
    let path: TreePath = path.parse().unwrap();
    let tree = Tree::from([(path.clone(), file(broken))]);
    let changes = Changes::from([(path, Some(file(fixed)))]);
    let fix = patch::diff(&mut |path: &TreePath| tree.get(path).cloned(), &changes);
    let mut task = task(id, &project, "none.py", "");
    task.oracle = Some(Oracle::Patch { patch: fix });
    (task, tree)
}

/// Why two tasks belong together, by the rule of a version, with trees and by patches alone.
fn kinds(pair: &[(Task, Tree); 2], version: u32, with_trees: bool) -> BTreeSet<&'static str> {
    let rule = LinkRule {
        version,
        ..LinkRule::default()
    };
    let mut trees = |task: &Task| {
        let tree = &pair.iter().find(|(known, _)| known.id == task.id)?.1;
        with_trees.then(|| Arc::new(tree.clone()))
    };
    let tasks = [pair[0].0.clone(), pair[1].0.clone()];
    let found = Collector::of(&rule).all(&tasks, &mut trees).unwrap();
    let links = links(&found, &rule);
    links.iter().map(|link| link.reason.kind()).collect()
}

#[test]
fn clones_are_linked_whatever_was_changed_on_the_way() {
    let broken = CLONE.replace("[1:]:", "[2:]:");
    let original = || located("a", "src/a/http.py", CLONE, &broken);
    // The copies have bugs of their own, so that nothing but the code is the same.
    let bug = |text: &str| text.replace("return name", "return not name");
    for (what, copy) in [
        ("vendored", CLONE.to_owned()),
        (
            "constants",
            CLONE.replace("17", "42").replace("not a header", "bad"),
        ),
        ("layout", CLONE.replace("    ", "  ")),
        (
            "one line more",
            CLONE.replace(
                "    parameters = {}\n",
                "    parameters = {}\n    count = 0\n",
            ),
        ),
        (
            "every name",
            CLONE
                .replace("parse_header", "split_field")
                .replace("parameters", "options")
                .replace("separator", "colon")
                .replace("value", "rest")
                .replace("line", "raw"),
        ),
    ] {
        // Among other code, as a vendored function is.
        let others: String = (0..40u64)
            .map(|n| format!("def other_{n}(a):\n{}\n", body(n)))
            .collect();
        let around = |text: &str| format!("{others}\n{text}");
        let (fixed, broken) = (around(&copy), around(&bug(&copy)));
        assert_ne!(fixed, broken, "{what}");
        let pair = [
            original(),
            located("b", "b/_vendor/http.py", &fixed, &broken),
        ];
        assert!(
            kinds(&pair, 2, true).contains("near-duplicate-code"),
            "{what}: {:?}",
            kinds(&pair, 2, true)
        );
    }
}

#[test]
fn short_copies_are_linked_and_what_everybody_writes_is_not() {
    let bug = |text: &str| {
        let at = text.trim_end().rfind('\n').unwrap();
        format!("{}\n        pass\n", &text[..at])
    };
    for (first, second) in BOILERPLATE {
        let pair = [
            located("a", "a/one.py", first, &bug(first)),
            located("b", "b/two.py", second, &bug(second)),
        ];
        for with_trees in [true, false] {
            assert_eq!(
                kinds(&pair, 2, with_trees),
                BTreeSet::new(),
                "{first}{second}"
            );
        }
    }
    let describe = &BOILERPLATE[3];
    let pair = [
        located("a", "a/one.py", describe.0, &bug(describe.0)),
        located("b", "b/two.py", describe.1, &bug(describe.1)),
    ];
    assert!(!kinds(&pair, 1, true).is_empty(), "what version 1 linked");
    // The same 26 tokens are a copy: what mends one mends the other.
    let same = "
class A:
    def itervalues(self, multi=False):
        for k, v in self.iteritems(multi=multi):
            yield v
";
    let pair = [
        located("a", "a/one.py", same, &same.replace("yield v", "yield k")),
        located(
            "b",
            "b/two.py",
            same,
            &same.replace("yield v", "yield multi"),
        ),
    ];
    assert!(kinds(&pair, 2, true).contains("near-duplicate-code"));
}

/// Unlike functions whose fixes are shown from inside their docstrings on.
fn under_docstrings() -> [(Task, Tree); 2] {
    let text = |name: &str, lines: &str, salt: u64| {
        let before = body(salt);
        let docs = "    the first line of the text\n    the second line of the text\n    the third line of the text\n    \"\"\"\n";
        format!(
            "{before}\ndef {name}(self):\n    \"\"\"What {name} does.\n\n{docs}{lines}\n\n{}",
            body(salt + 1)
        )
    };
    let located = |id, path, right: &str, wrong: &str, salt| {
        located(id, path, &text(id, right, salt), &text(id, wrong, salt))
    };
    [
        located(
            "size",
            "a/node.py",
            "    for size, _ in enumerate(PreOrderIter(self), 1):\n        continue\n    return size",
            "    for size, _ in enumerate(1, PreOrderIter(self)):\n        continue\n    return size",
            100,
        ),
        located(
            "normalize",
            "b/api.py",
            "    left = URIReference.from_string(uri, encoding).normalize()\n    return left.unsplit()",
            "    left = None\n    return left.unsplit()",
            200,
        ),
    ]
}

#[test]
fn hunks_that_begin_inside_a_docstring_are_read_as_code() {
    let pair = under_docstrings();
    let Some(Oracle::Patch { patch }) = &pair[0].0.oracle else {
        panic!()
    };
    let shown = String::from_utf8(patch.0.to_vec()).unwrap();
    assert_eq!(shown.matches("\"\"\"").count(), 1, "{shown}");
    // Read as a text of its own, all code below the quotes is one string.
    assert_eq!(kinds(&pair, 1, true), BTreeSet::from(["same-fix"]));
    for with_trees in [true, false] {
        assert_eq!(kinds(&pair, 2, with_trees), BTreeSet::new());
    }
    // The same change of the same lines is found, wherever it lies and whatever is around.
    let [first, _] = under_docstrings();
    let mut copy = first.clone();
    copy.0.id = TaskId::new("copy").unwrap();
    copy.0.statement = "something else".into();
    copy.0.origin.project = "elsewhere".into();
    let Start::SourceDistribution { archive, .. } = &mut copy.0.start else {
        panic!()
    };
    (archive.project, archive.sha256) = ("elsewhere".into(), Digest::of(b"elsewhere"));
    let both = kinds(&[first, copy], 2, false);
    assert!(both.contains("same-fix"), "{both:?}");
}

#[test]
fn one_statement_is_one_group() {
    let mut tasks = suite(11, 60);
    tasks[3].statement = "The  parser FAILS.\n".into();
    tasks[17].statement = "the parser\n\nfails. ".into();
    let found = evidence(&tasks);
    let manifest = split(&found, &rule(Granularity::File)).unwrap();
    assert_eq!(verify(&manifest, &found).unwrap(), []);
    let mut of: BTreeMap<String, BTreeSet<SourceGroup>> = BTreeMap::new();
    for task in &tasks {
        let group = manifest.task(&task.id).unwrap().group.clone();
        of.entry(statement_words(&task.statement))
            .or_default()
            .insert(group);
    }
    assert!(of.len() < tasks.len());
    assert!(of.values().all(|groups| groups.len() == 1), "{of:?}");
    let chain = |version| {
        let rule = LinkRule {
            version,
            ..LinkRule::default()
        };
        let pair = evidence(&[tasks[3].clone(), tasks[17].clone()]);
        let links = links(&pair, &rule);
        links
            .iter()
            .map(|link| link.reason.kind())
            .collect::<Vec<_>>()
    };
    assert!(chain(2).contains(&"same-statement"));
    assert!(!chain(1).contains(&"same-statement"));
    // A later task with a frozen task's statement goes where that is.
    let mut late = task("late", "other", "other/x.py", &body(999));
    late.statement = "THE PARSER FAILS.".into();
    tasks.push(late);
    let extension = extend(&manifest, &evidence(&tasks)).unwrap();
    assert_eq!(
        extension.manifest.task(&tasks[60].id).unwrap().group,
        manifest.task(&tasks[3].id).unwrap().group
    );
}

#[test]
fn a_split_is_verified_and_extended_by_the_rule_that_made_it() {
    let old = LinkRule {
        version: 1,
        ..LinkRule::default()
    };
    let [(first, _), (second, _)] = under_docstrings();
    let mut other = task("other", "third", "third/x.py", &body(5));
    other.statement = first.statement.clone();
    let read =
        |rule: &LinkRule, tasks: &[Task]| Collector::of(rule).all(tasks, &mut no_sources).unwrap();
    let tasks = [first, second, other];
    let rule = SplitRule {
        links: old,
        ..SplitRule::default()
    };
    let manifest = split(&read(&old, &tasks[..2]), &rule).unwrap();
    assert_eq!(manifest.groups.len(), 1, "linked by the old reading");
    assert_eq!(verify(&manifest, &read(&old, &tasks[..2])).unwrap(), []);
    let extension = extend(&manifest, &read(&old, &tasks)).unwrap();
    assert_eq!(extension.manifest.rule.links.version, 1);
    assert_eq!(extension.manifest.groups.len(), 2, "statements were free");
    assert_eq!(
        split(&read(&LinkRule::default(), &tasks), &SplitRule::default())
            .unwrap()
            .groups
            .len(),
        2,
        "now the statements link, and the fixes do not"
    );
    for version in [0, 3] {
        let mut unknown = manifest.clone();
        unknown.rule.links.version = version;
        let error = verify(&unknown, &read(&old, &tasks[..2])).unwrap_err();
        assert!(error.to_string().contains("knows 1 to 2"), "{error}");
        assert!(error.hint().is_some());
    }
}
