//! URLs in messages. A user name and a password in a URL are as secret as a token, therefore all code prints URLs as
//! [`Shown`].

use std::fmt;

/// A URL, or an invalid one, that is displayed without the part before the `@` of its host.
#[derive(Clone, Copy)]
pub struct Shown<'u>(pub &'u str);

/// Everything before the last `@` counts as secret: a password may contain any character, although a valid URL escapes
/// some.
impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = match self.0.split_once("://") {
            Some((scheme, rest)) if is_scheme(scheme) => (Some(scheme), rest),
            _ => (None, self.0),
        };
        if let Some(scheme) = scheme {
            write!(f, "{}://", scheme.escape_debug())?;
        }
        match rest.rsplit_once('@') {
            Some((_, host)) => write!(f, "…@{}", host.escape_debug()),
            None => write!(f, "{}", rest.escape_debug()),
        }
    }
}

fn is_scheme(text: &str) -> bool {
    let is_part = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.bytes().all(is_part)
}

/// Like [`fmt::Display`], so that a derived `Debug` of a containing type does not expose the secret.
impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
#[path = "tests/url.rs"]
mod tests;
