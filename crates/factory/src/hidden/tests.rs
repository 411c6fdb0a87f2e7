use super::*;

const FILE: &str = r#"import pytest

# A comment that stays.
@pytest.mark.parametrize(
    "x", [1, 2]
)
def test_a(x):
    assert x


class TestOnly:
    """Has a docstring."""

    def test_b(self):
        pass  # the end


class TestNamesake:
    def test_b(self):
        pass


class TestEmptied:
    def test_c(self):
        if True:
            pass

    @pytest.mark.skipif(False, reason="no")
    async def test_d(self): pass


class Base:
    def test_e(self):
        pass


class TestSub(Base):
    pass


if True:
    def test_f():
        pass
else:
    x = 1


def test_g():
    pass


def test_h():
    test_g()


def helper():
    pass
"#;

fn ids(names: &[&str]) -> Vec<TestId> {
    names
        .iter()
        .map(|name| TestId(format!("t/test_m.py::{name}")))
        .collect()
}

const ALL: [&str; 11] = [
    "test_a[1]",
    "test_a[2]",
    "TestOnly::test_b",
    "TestNamesake::test_b",
    "TestEmptied::test_c",
    "TestEmptied::test_d",
    "Base::test_e",
    "TestSub::test_e",
    "test_f",
    "test_g",
    "test_h",
];

fn sources(content: &'static str) -> TestSources<'static> {
    TestSources::new(&ids(&ALL), move |_| Some(content.as_bytes().to_vec()))
}

fn cut_out(content: &str, names: &[(&[&str], &str)]) -> String {
    let classes: Vec<Vec<String>> = names
        .iter()
        .map(|(classes, _)| classes.iter().map(|c| (*c).to_owned()).collect())
        .collect();
    let wanted = classes
        .iter()
        .zip(names)
        .map(|(classes, (_, name))| (classes.as_slice(), *name))
        .collect();
    String::from_utf8(without(content.as_bytes(), &wanted).unwrap()).unwrap()
}

#[test]
fn what_is_cut_goes_with_its_decorators_and_nothing_else_changes() {
    let cut = cut_out(FILE, &[(&[], "test_a")]);
    let start = FILE.find("@pytest.mark.parametrize").unwrap();
    let end = FILE.find("\n\nclass TestOnly").unwrap();
    assert_eq!(cut, format!("{}{}", &FILE[..start], &FILE[end..]));
    let cut = cut_out(FILE, &[(&["TestOnly"], "test_b")]);
    assert_eq!(
        cut,
        FILE.replace("    def test_b(self):\n        pass  # the end\n", "")
    );
    assert!(cut.contains("class TestNamesake:\n    def test_b(self):"));
}

#[test]
fn an_emptied_class_goes_and_one_that_is_named_stays_open() {
    let both: [(&[&str], &str); 2] = [(&["TestEmptied"], "test_c"), (&["TestEmptied"], "test_d")];
    let cut = cut_out(FILE, &both);
    assert!(!cut.contains("TestEmptied") && cut.contains("class Base"));
    let named = format!("{FILE}\nnames = [TestEmptied]\n");
    assert!(cut_out(&named, &both).contains("class TestEmptied:\n    pass\n"));
    assert!(cut_out(FILE, &[(&[], "test_f")]).contains("if True:\n    pass\nelse:"));
    let windows = named.replace('\n', "\r\n");
    assert!(cut_out(&windows, &both).contains("class TestEmptied:\r\n    pass\r\n"));
    assert_eq!(cut_out("def test_x():\n    pass", &[(&[], "test_x")]), "");
}

/// CPython's own compiler takes every version of the file.
#[test]
fn what_is_left_compiles() {
    let mut versions = vec![FILE.to_owned()];
    for (classes, name) in [
        (&[][..], "test_a"),
        (&["TestOnly"], "test_b"),
        (&["TestEmptied"], "test_c"),
        (&["TestEmptied"], "test_d"),
        (&["Base"], "test_e"),
        (&[], "test_f"),
    ] {
        versions.push(cut_out(FILE, &[(classes, name)]));
    }
    for version in versions {
        let compiled = std::process::Command::new("python3")
            .args([
                "-c",
                "import sys; compile(sys.argv[1], 'x', 'exec')",
                &version,
            ])
            .status()
            .unwrap();
        assert!(compiled.success(), "{version}");
    }
}

#[test]
fn inherited_and_referenced_functions_are_not_hidden() {
    let sources = sources(FILE);
    let removable = |name: &str| {
        let id = &ids(&[name])[0];
        sources.is_removable(&Function::of(id).unwrap())
    };
    assert!(removable("test_a[1]") && removable("TestOnly::test_b") && removable("test_h"));
    assert!(!removable("Base::test_e") && !removable("TestSub::test_e"));
    assert!(!removable("test_g") && !removable("test_unknown"));
    let lists = TestLists {
        fail_to_pass: ids(&["test_g"]),
        pass_to_pass: Vec::new(),
    };
    assert_eq!(
        sources.divide(&Digest::of(b""), &lists),
        Err(HiddenError::NothingToHide { n_functions: 1 })
    );
}

#[test]
fn half_the_functions_are_hidden_and_parameters_stay_together() {
    let sources = sources(FILE);
    let lists = TestLists {
        fail_to_pass: ids(&[
            "test_a[1]",
            "TestOnly::test_b",
            "TestEmptied::test_c",
            "test_h",
        ]),
        pass_to_pass: ids(&["test_a[2]", "test_f"]),
    };
    let mut seen_hidden = BTreeSet::new();
    for bug in 0..40_u8 {
        let bug = Digest::of(&[bug]);
        let division = sources.divide(&bug, &lists).unwrap();
        assert_eq!(division, sources.divide(&bug, &lists).unwrap());
        assert_eq!(division.hidden.fail_to_pass.len(), 2);
        assert_eq!(division.public.fail_to_pass.len(), 2);
        let a_hidden = division
            .hidden
            .fail_to_pass
            .contains(&ids(&["test_a[1]"])[0]);
        assert_eq!(
            a_hidden,
            division
                .hidden
                .pass_to_pass
                .contains(&ids(&["test_a[2]"])[0])
        );
        assert!(division.public.pass_to_pass.contains(&ids(&["test_f"])[0]));
        let (_, public) = division.changes.first_key_value().unwrap();
        let Some(Entry::File { content, .. }) = public else {
            panic!("a file")
        };
        let content = String::from_utf8(content.clone()).unwrap();
        for id in &division.hidden.fail_to_pass {
            let function = Function::of(id).unwrap();
            let whole = FILE.matches(&format!("def {}(", function.name)).count();
            let left = content.matches(&format!("def {}(", function.name)).count();
            assert_eq!(left, whole - 1);
        }
        for id in &division.public.fail_to_pass {
            let function = Function::of(id).unwrap();
            assert!(content.contains(&format!("def {}(", function.name)));
        }
        seen_hidden.extend(division.hidden.fail_to_pass);
    }
    assert_eq!(seen_hidden.len(), 4);
    let one = TestLists {
        fail_to_pass: ids(&["test_a[1]", "test_a[2]"]),
        pass_to_pass: Vec::new(),
    };
    let division = sources.divide(&Digest::of(b""), &one).unwrap();
    assert!(division.public.fail_to_pass.is_empty());
    assert_eq!(division.hidden.fail_to_pass.len(), 2);
}
