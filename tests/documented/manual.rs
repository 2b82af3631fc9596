//! Reads a manual page: its sections, and what its lists are about.

/// A manual page, its markup taken away.
pub(crate) struct Manual(String);

impl Manual {
    pub(crate) fn open(path: &str) -> Self {
        Self(crate::read(path))
    }

    /// What stands below the heading `.SH NAME`.
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

    /// What each entry of the section's lists is about: the line behind `.TP`, as it reads. Not of lists inside of entries.
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

/// A line as it is read: without macros and fonts.
pub(crate) fn plain(line: &str) -> String {
    let is_macro = |word: &str| matches!(word, ".B" | ".I" | ".BR" | ".BI" | ".IR" | ".RB");
    let text = match line.split_once(' ') {
        Some((word, rest)) if is_macro(word) => arguments(rest),
        _ => line.to_owned(),
    };
    ["\\fB", "\\fI", "\\fR"].into_iter().fold(text, |text, font| text.replace(font, "")).replace("\\-", "-")
}

/// The arguments of a macro, set together: `/a ", " /b` reads `/a, /b`.
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
