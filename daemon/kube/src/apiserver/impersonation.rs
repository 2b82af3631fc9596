//! User impersonation: requests in another user's name, as `as`, `as-uid`, `as-groups` and `as-user-extra` of a kubeconfig ask
//! for. Pure; the headers are those of client-go (`transport.NewImpersonatingRoundTripper`).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use hyper::header::{HeaderName, HeaderValue};

/// In whose name requests are made. Without a user nothing else counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    /// `as`
    pub user: String,
    /// `as-uid`; empty where it is not set.
    pub uid: String,
    /// `as-groups`
    pub groups: Vec<String>,
    /// `as-user-extra`
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Headers of a request, one of them perhaps several times.
pub type Headers = Vec<(HeaderName, HeaderValue)>;

impl Impersonation {
    /// What each request says.
    ///
    /// # Errors
    /// The field of the kubeconfig that holds what no header can carry.
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

/// What cannot be in the name of a header, as `%` and two digits: apiservers turn it back.
fn escaped(key: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&b);
    key.bytes().fold(String::new(), |mut text, byte| {
        if is_plain(byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
            let _ = write!(text, "%{byte:02X}");
        }
        text
    })
}

#[cfg(test)]
mod tests;
