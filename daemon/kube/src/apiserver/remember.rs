//! Apiserver addresses that worked, kept in the state directory over a restart or reboot. Owns the file's form and that it
//! is never half written; whether what it says is still true is for the supervisor to find out.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::address::{Address, Server};
use super::authorities::Authorities;
use super::pool::Remembered;
use crate::state;

/// In the state directory.
const NAME: &str = "apiservers.json";

const VERSION: u32 = 1;

/// Far more than the most addresses take.
const MAX_BYTES: u64 = 256 << 10;

/// What is remembered, and of which cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// [`Authorities::names`]: who vouches for the cluster's servers. A file of an earlier version has one name.
    pub authorities: Vec<String>,
    /// The uid of its Service `default/kubernetes`, if it was ever known.
    pub cluster: Option<String>,
    /// What worked.
    pub apiservers: Vec<Remembered>,
}

impl Memory {
    /// Whether the cluster is the one with these certificate authorities.
    pub fn is_of(&self, authorities: &Authorities) -> bool {
        self.authorities.iter().any(|known| authorities.include(known))
    }
}

#[derive(Serialize, Deserialize)]
struct Form {
    version: u32,
    /// All that an earlier version reads: the name of the whole bundle.
    authority: String,
    #[serde(default)]
    authorities: Vec<String>,
    cluster: Option<String>,
    apiservers: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    address: Address,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tls_server_name: Option<String>,
    /// Seconds since 1970.
    worked: u64,
}

/// What is remembered in the state directory; `None` if nothing is. May block.
///
/// # Errors
/// What is wrong with the file, in words; one that cannot be understood has been put aside.
pub fn load(directory: &Path) -> Result<Option<Memory>, String> {
    state::load(&directory.join(NAME), MAX_BYTES, understand)
}

/// The same without blocking: a file system that is away keeps nobody from starting.
///
/// # Errors
/// As [`load`], and when that takes longer than `patience`.
pub async fn load_within(directory: PathBuf, patience: Duration) -> Result<Option<Memory>, String> {
    let path = directory.join(NAME);
    let loading = state::aside(move || Ok(load(&directory)));
    let unread = |why: String| format!("{} cannot be read: {why}; going on without what it remembers", path.display());
    match tokio::time::timeout(patience, loading).await {
        Ok(Ok(loaded)) => loaded,
        Ok(Err(error)) => Err(unread(error.to_string())),
        Err(_elapsed) => Err(unread(format!("not done within {patience:?}"))),
    }
}

fn understand(bytes: &[u8]) -> Result<Memory, String> {
    let form: Form = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if form.version != VERSION {
        return Err(format!("it is of version {}, and {VERSION} is understood", form.version));
    }
    let remembered = |Entry { address, tls_server_name, worked }: Entry| {
        let server = Server { address, tls_server_name: tls_server_name.map(Into::into) };
        Remembered { server, worked }
    };
    let apiservers = form.apiservers.into_iter().map(remembered).collect();
    let mut authorities = form.authorities;
    if !authorities.contains(&form.authority) {
        authorities.push(form.authority);
    }
    Ok(Memory { authorities, cluster: form.cluster, apiservers })
}

/// Writes the file, whole or not at all. May block.
///
/// # Errors
/// What the file system says; the file is as it was then.
pub fn save(directory: &Path, memory: &Memory) -> io::Result<()> {
    let Memory { authorities, cluster, apiservers } = memory;
    let entry = |Remembered { server, worked }: &Remembered| Entry {
        address: server.address.clone(),
        tls_server_name: server.tls_server_name.as_deref().map(str::to_owned),
        worked: *worked,
    };
    let form = Form {
        version: VERSION,
        authority: authorities.last().cloned().unwrap_or_default(),
        authorities: authorities.clone(),
        cluster: cluster.clone(),
        apiservers: apiservers.iter().map(entry).collect(),
    };
    let mut bytes = serde_json::to_vec_pretty(&form)?;
    bytes.push(b'\n');
    let (path, new) = (directory.join(NAME), directory.join(format!("{NAME}.new")));
    state::replace(&path, &new, |mut file| file.write_all(&bytes))
}

#[cfg(test)]
mod tests;
