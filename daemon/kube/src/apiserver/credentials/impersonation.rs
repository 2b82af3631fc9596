//! User impersonation: sends requests on behalf of another user, as requested by `as`, `as-uid`, `as-groups` and
//! `as-user-extra` in a kubeconfig. Pure. The headers are the same as in client-go
//! (`transport.NewImpersonatingRoundTripper`).

use std::collections::BTreeMap;

use hyper::header::{HeaderName, HeaderValue};

/// The user to impersonate. Without a user, the other fields have no effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    /// `as`
    pub user: String,
    /// `as-uid`; empty if not set.
    pub uid: String,
    /// `as-groups`
    pub groups: Vec<String>,
    /// `as-user-extra`
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The headers of a request. A name may occur several times.
pub type Headers = Vec<(HeaderName, HeaderValue)>;

impl Impersonation {
    /// The headers of each request.
    ///
    /// # Errors
    /// The field of the kubeconfig with a value that is not allowed in a header.
    pub fn headers(&self) -> Result<Headers, &'static str> {
        let value = |text: &str, field| HeaderValue::from_str(text).or(Err(field));
        let mut headers = vec![(HeaderName::from_static("impersonate-user"), value(&self.user, "as")?)];
        if !self.uid.is_empty() {
            headers.push((HeaderName::from_static("impersonate-uid"), value(&self.uid, "as-uid")?));
        }
        for group in &self.groups {
            headers.push((HeaderName::from_static("impersonate-group"), value(group, "as-groups")?));
        }
        for (key, values) in &self.extra {
            let name = HeaderName::from_bytes(format!("impersonate-extra-{}", escaped(key)).as_bytes());
            let name = name.or(Err("as-user-extra"))?;
            for text in values {
                headers.push((name.clone(), value(text, "as-user-extra")?));
            }
        }
        Ok(headers)
    }
}

/// Escapes characters that are not allowed in the name of a header as `%` and two digits, which apiservers decode.
fn escaped(key: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&b);
    let escape = |b: u8| if is_plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") };
    key.bytes().map(escape).collect()
}

#[cfg(test)]
#[path = "tests/impersonation.rs"]
mod tests;
