//! The index of files against CPython's own syntax trees, and what tokens do not see.

use std::process::Command;

use super::*;

type Indexed = (String, String, u32, u32, bool, usize);
type Imported = (u32, u32, String, Vec<String>);

#[test]
fn definitions_and_imports_are_those_of_cpython() {
    let output = Command::new("python3")
        .args(["-c", include_str!("index.py"), "6"])
        .output()
        .expect("Python is installed where these tests run");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let files: Vec<(String, Vec<Indexed>, Vec<Imported>)> =
        serde_json::from_slice(&output.stdout).unwrap();
    let mut n_definitions = 0;
    for (path, expected, expected_imports) in files {
        let Ok(source) = Source::parse(&std::fs::read(&path).unwrap()) else {
            continue;
        };
        let seen: Vec<Indexed> = definitions(&source)
            .into_iter()
            .map(|definition| {
                let kind = match definition.kind {
                    DefinitionKind::Function => "function",
                    DefinitionKind::Class => "class",
                };
                (
                    kind.to_owned(),
                    definition.name,
                    definition.first_line,
                    definition.last_line,
                    definition.docstring.is_some(),
                    definition.decorators.len(),
                )
            })
            .collect();
        n_definitions += seen.len();
        assert_eq!(seen, expected, "{path}");
        let seen: Vec<Imported> = imports(&source)
            .into_iter()
            .map(|import| {
                let mut names: Vec<String> =
                    import.names.into_iter().map(|name| name.name).collect();
                if import.is_wildcard {
                    names.push("*".into());
                }
                (import.line, import.level, import.module, names)
            })
            .collect();
        assert_eq!(seen, expected_imports, "{path}");
    }
    assert!(n_definitions > 300, "{n_definitions}");
}

fn view(text: &str, options: TokenOptions) -> String {
    let source = Source::parse(text.as_bytes()).unwrap();
    tokens(&source, 0..text.len(), options).join(" ")
}

#[test]
fn tokens_do_not_see_names_literals_layout_or_words() {
    let a = "def f(a: int, b=1) -> str:\n    \"\"\"Doc.\"\"\"\n    if a > b:  # why\n        return 'x'\n    return g(a)\n";
    let b = "def size(left, right = 22):\n\n    if (left) > right: return \"yy\"\n    return other(left)\n";
    let default = TokenOptions::default();
    assert_eq!(
        view(a, default),
        "def name0 ( name1 , name2 = integer ) : { if name1 > name2 : { return string } return name3 ( name1 ) }"
    );
    assert_eq!(
        view(a, default),
        view(&b.replace("(left) >", "left >"), default)
    );
    assert_ne!(view(a, default), view(b, default));
    let exact = TokenOptions {
        identifiers: Identifiers::Kept,
        literals: true,
        annotations: true,
    };
    assert_eq!(
        view(a, exact),
        "def f ( a : int , b = 1 ) -> str : { if a > b : { return 'x' } return g ( a ) }"
    );
    let same = TokenOptions {
        identifiers: Identifiers::Same,
        ..default
    };
    assert_eq!(view("a = b\n", same), "name = name");
}

#[test]
fn tokens_of_a_function_are_those_of_its_bytes() {
    let text = "x = 1\ndef f(a):\n    return a\ny = 2\n";
    let source = Source::parse(text.as_bytes()).unwrap();
    let function = &definitions(&source)[0];
    assert_eq!(
        tokens(&source, function.bytes.clone(), TokenOptions::default()).join(" "),
        "def name0 ( name1 ) : { return name1 }"
    );
    assert_eq!(&text[function.signature.clone()], "def f(a):");
    assert_eq!(&text[function.body.clone()], "return a");
}

#[test]
fn relative_imports_become_absolute() {
    let text = "from . import a\nfrom ..b import c as d\nimport e.f as g\nif TYPE_CHECKING:\n    from h import *\n";
    let list = imports(&Source::parse(text.as_bytes()).unwrap());
    let package = ["p", "q"];
    let names: Vec<Option<String>> = list.iter().map(|i| i.absolute(&package)).collect();
    let text = |name: &str| Some(name.to_owned());
    assert_eq!(names, [text("p.q"), text("p.b"), text("e.f"), text("h")]);
    assert_eq!(list[0].candidates(&package), ["p.q", "p.q.a"]);
    assert_eq!(list[1].names[0].alias.as_deref(), Some("d"));
    assert_eq!(list[2].alias.as_deref(), Some("g"));
    assert!(list[3].is_wildcard && list[3].type_checking && !list[0].type_checking);
    assert_eq!(list[1].absolute(&["p"]), None);
    assert_eq!(
        module_name("p/q/__init__.py"),
        Some(("p.q".into(), vec!["p".into(), "q".into()]))
    );
    assert_eq!(
        module_name("p/q.py"),
        Some(("p.q".into(), vec!["p".into()]))
    );
    assert_eq!(module_name("p/a-b.py"), None);
}
