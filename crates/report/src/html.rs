//! HTML that cannot be broken out of: text only ever enters through escaping.

/// A piece of well-formed HTML.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Html(String);

impl Html {
    /// Nothing.
    pub fn none() -> Self {
        Html::default()
    }

    /// Markup that was written in this program.
    pub fn fixed(markup: &'static str) -> Self {
        Html(markup.to_owned())
    }

    /// Untrusted text, made visible and escaped.
    pub fn text(text: impl AsRef<str>) -> Self {
        Html(escape(&crate::visible::for_page(text.as_ref())))
    }

    /// Adds a piece at the end.
    pub fn push(&mut self, piece: Html) {
        self.0.push_str(&piece.0);
    }

    /// Whether there is nothing.
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// The markup.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromIterator<Html> for Html {
    fn from_iter<I: IntoIterator<Item = Html>>(pieces: I) -> Self {
        let mut all = Html::none();
        for piece in pieces {
            all.push(piece);
        }
        all
    }
}

impl From<&str> for Html {
    fn from(text: &str) -> Self {
        Html::text(text)
    }
}

impl From<String> for Html {
    fn from(text: String) -> Self {
        Html::text(text)
    }
}

/// An element with a class and content. The tag is part of this program; an empty class is left
/// out.
pub fn element(tag: &'static str, class: &str, content: impl Into<Html>) -> Html {
    let class = if class.is_empty() {
        None
    } else {
        Some(("class", class))
    };
    with_attributes(tag, class.as_slice(), content)
}

/// An element with attributes and content. Attribute values are escaped.
pub fn with_attributes(
    tag: &'static str,
    attributes: &[(&'static str, &str)],
    content: impl Into<Html>,
) -> Html {
    let mut out = format!("<{tag}");
    for (name, value) in attributes {
        out += &format!(" {name}=\"{}\"", escape(&crate::visible::for_page(value)));
    }
    out.push('>');
    out.push_str(&content.into().0);
    out += &format!("</{tag}>");
    Html(out)
}

/// A list of pieces as one.
pub fn all(pieces: impl IntoIterator<Item = Html>) -> Html {
    pieces.into_iter().collect()
}

/// A table: column heads with whether they hold numbers, and rows of cells.
pub fn table(
    class: &str,
    heads: &[(&str, bool)],
    rows: impl IntoIterator<Item = Vec<Html>>,
) -> Html {
    let head = heads.iter().map(|&(name, number)| {
        with_attributes(
            "th",
            &[
                ("scope", "col"),
                ("class", if number { "number" } else { "" }),
            ],
            name,
        )
    });
    let body = rows.into_iter().map(|cells| {
        let cells = cells.into_iter().enumerate().map(|(index, cell)| {
            let number = heads.get(index).is_some_and(|head| head.1);
            if index == 0 {
                with_attributes("th", &[("scope", "row")], cell)
            } else {
                element("td", if number { "number" } else { "" }, cell)
            }
        });
        element("tr", "", all(cells))
    });
    element(
        "div",
        "scroll",
        element(
            "table",
            class,
            all([
                element("thead", "", element("tr", "", all(head))),
                element("tbody", "", all(body)),
            ]),
        ),
    )
}

/// Text for element content and for double-quoted attributes.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// JSON for a `<script>` data block. Inside one a browser looks for `</script` and `<!--` and
/// nothing else, and JSON lets `<` be written as an escape, so no value can end the block.
pub fn data_json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value)
        .expect("plain data serializes to JSON")
        .replace('<', "\\u003c")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        let hostile = "<script>alert('1')</script>\" onload=\"x & y";
        let piece = with_attributes("p", &[("title", hostile)], hostile);
        assert_eq!(piece.as_str().matches('<').count(), 2, "{piece:?}");
        assert!(!piece.as_str().contains("\" onload"));
        assert_eq!(element("b", "", "a").as_str(), "<b>a</b>");
        assert_eq!(element("b", "c", "a").as_str(), "<b class=\"c\">a</b>");
    }

    #[test]
    fn data_cannot_end_its_block() {
        let hostile = "</script><!--<script>";
        let json = data_json(&hostile);
        assert!(!json.contains('<'));
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), hostile);
    }
}
