//! Parses a manual page into sections and list entries.

/// A manual page.
pub(crate) struct Manual(String);

impl Manual {
    pub(crate) fn open(path: &str) -> Self {
        Self(crate::read(path))
    }

    /// The text below the heading `.SH NAME`.
    pub(crate) fn section(&self, name: &str) -> &str {
        let begin = format!(".SH {name}\n");
        let start = self.0.find(&begin).ok_or_else(|| format!("no section {name}")).expect("a section");
        let rest = &self.0[start + begin.len()..];
        &rest[..rest.find("\n.SH ").map_or(rest.len(), |end| end + 1)]
    }

    /// The headings `.SH`.
    pub(crate) fn headings(&self) -> impl Iterator<Item = &str> {
        self.0.lines().filter_map(|line| line.strip_prefix(".SH "))
    }

    /// The tags of a section's lists: the line after `.TP` as plain text, without nested lists.
    pub(crate) fn entries(&self, section: &str) -> Vec<String> {
        let (mut entries, mut depth, mut is_next) = (Vec::new(), 0, false);
        for line in self.section(section).lines() {
            match line {
                ".RS" => depth += 1,
                ".RE" => depth -= 1,
                ".TP" => is_next = depth == 0,
                _ if std::mem::take(&mut is_next) => entries.push(plain(line)),
                _ => {}
            }
        }
        entries
    }
}

/// A line as plain text, without macros and fonts.
pub(crate) fn plain(line: &str) -> String {
    let is_macro = |word: &str| matches!(word, ".B" | ".I" | ".BR" | ".BI" | ".IR" | ".RB");
    let text = match line.split_once(' ') {
        Some((word, rest)) if is_macro(word) => arguments(rest),
        _ => line.to_owned(),
    };
    ["\\fB", "\\fI", "\\fR"].into_iter().fold(text, |text, font| text.replace(font, "")).replace("\\-", "-")
}

/// The arguments of a macro as one text: `/a ", " /b` becomes `/a, /b`.
fn arguments(text: &str) -> String {
    let (mut out, mut is_quoted) = (String::new(), false);
    for c in text.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            ' ' if !is_quoted => {}
            c => out.push(c),
        }
    }
    out
}
