//! Text into markup. What is not written in this program's source is escaped: there is no other way in.

use std::fmt::{Display, Write};

/// Markup that grows.
#[derive(Default)]
pub(super) struct Html(String);

impl Html {
    /// Markup of this program's own.
    pub fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Anything else, as text or as the value of a quoted attribute.
    pub fn text(&mut self, text: impl Display) -> &mut Self {
        let _ = write!(Escaped(&mut self.0), "{text}");
        self
    }

    /// Other markup.
    pub fn with(&mut self, other: &Html) -> &mut Self {
        self.0.push_str(&other.0);
        self
    }

    /// An element with text in it.
    pub fn element(&mut self, open: &'static str, text: impl Display, close: &'static str) -> &mut Self {
        self.raw(open).text(text).raw(close)
    }

    /// All of it.
    pub fn into_string(self) -> String {
        self.0
    }
}

/// Escapes what is written to it.
struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                // Nothing that a page could be made to look different by: neither control characters nor directions.
                c if c.is_control() && c != '\n' => self.0.push('\u{fffd}'),
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' => self.0.push('\u{fffd}'),
                c => self.0.push(c),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_never_becomes_markup() {
        let mut html = Html::default();
        html.raw("<a title=\"").text("\"><script>alert('&')</script>\u{202e}\u{7}").raw("\">");
        let text = html.into_string();
        assert_eq!(text, "<a title=\"&quot;&gt;&lt;script&gt;alert(&#39;&amp;&#39;)&lt;/script&gt;\u{fffd}\u{fffd}\">");
    }
}
