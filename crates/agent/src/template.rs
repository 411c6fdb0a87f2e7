//! Prompt templates: Jinja2's language, strict about unknown names.
//!
//! Rendering follows Jinja2 with `StrictUndefined`: a name that has no value is an error, and one
//! trailing newline of the template is dropped. Known differences, none of which the published
//! templates meet: `true`, `false` and `none` print in lower case, lists print in JSON's form, and
//! Python methods on values are limited to those that minijinja offers.

use minijinja::{Environment, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value};

/// Variables by name.
pub type Variables = Map<String, Value>;

/// A template could not be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("render the {template} template: {message}")]
pub struct TemplateError {
    /// Which one.
    pub template: &'static str,
    /// What kind of error it is.
    pub class: TemplateErrorClass,
    /// The cause, with the line where it is known.
    pub message: String,
}

/// Kinds of template errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TemplateErrorClass {
    /// A name without a value.
    UndefinedVariable,
    /// The template is not well-formed.
    Syntax,
    /// Anything else that stops rendering (an unknown filter, too much work).
    Rendering,
}

impl TemplateErrorClass {
    /// The stable name that failures carry.
    pub fn name(self) -> &'static str {
        match self {
            TemplateErrorClass::UndefinedVariable => "UndefinedVariable",
            TemplateErrorClass::Syntax => "TemplateSyntax",
            TemplateErrorClass::Rendering => "TemplateRendering",
        }
    }
}

/// Renders `source`, named `template` in errors.
pub fn render(
    template: &'static str,
    source: &str,
    variables: &Variables,
) -> Result<String, TemplateError> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    // Jinja2 reads every line end of a template's source as LF.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    environment
        .render_str(&source, minijinja::value::Serde(variables))
        .map_err(|error| TemplateError {
            template,
            class: match error.kind() {
                ErrorKind::UndefinedError => TemplateErrorClass::UndefinedVariable,
                ErrorKind::SyntaxError => TemplateErrorClass::Syntax,
                _ => TemplateErrorClass::Rendering,
            },
            message: error.to_string(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: &str) {
        let Value::Object(variables) = serde_json::json!({
            "task": "T\n", "output": {"output": "aé😀d", "returncode": -9}, "actions": ["a", "b"],
        }) else {
            unreachable!()
        };
        assert_eq!(
            render("test", source, &variables).unwrap(),
            expected,
            "{source:?}"
        );
    }

    #[test]
    fn renders_as_jinja2_does() {
        check("a\n", "a");
        check("a\n\n", "a\n");
        check("{{task}}", "T\n");
        check("{{ output.output | length }}", "4");
        check("{{ output.output[:2] }}|{{ output.output[-2:] }}", "aé|😀d");
        check("{{output.returncode}} {{output['returncode']}}", "-9 -9");
        check("{{actions|length}}", "2");
        check("x\r\ny", "x\ny");
        check("<{{ '<b>' }}>", "<<b>>");
        check(
            "{% if output.output | length < 10 -%}\nA\n{{ task -}}\nB\n{%- else -%}\nC\n{%- endif -%}\n",
            "A\nT\nB",
        );
    }

    #[test]
    fn unknown_names_and_broken_templates_are_told_apart() {
        for (source, class) in [
            ("{{working_dir}}", TemplateErrorClass::UndefinedVariable),
            ("{{ task.nothing }}", TemplateErrorClass::UndefinedVariable),
            (
                "{% if working_dir %}{% endif %}",
                TemplateErrorClass::UndefinedVariable,
            ),
            ("{% if %}", TemplateErrorClass::Syntax),
            ("{{ task | no_such_filter }}", TemplateErrorClass::Rendering),
        ] {
            let variables = Variables::from_iter([("task".into(), "T".into())]);
            assert_eq!(
                render("test", source, &variables).unwrap_err().class,
                class,
                "{source:?}"
            );
        }
    }
}
