//! The file in the state directory with apiserver addresses that worked, which is preserved when nodelb or the node
//! restarts. Defines the format, and replaces the file atomically. The supervisor checks whether the contents are still
//! valid.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::address::{Address, Server};
use super::authorities::Authorities;
use super::pool::Remembered;
use crate::state;

/// The name of the file in the state directory.
const NAME: &str = "apiservers.json";

const VERSION: u32 = 1;

/// The maximum size of the file in bytes; much more than the maximum number of addresses needs.
const MAX_BYTES: u64 = 256 << 10;

/// The contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The certificate authorities of the cluster ([`Authorities::names`]). A file of an earlier version has one name.
    pub authorities: Vec<String>,
    /// The uid of the Service `default/kubernetes`, if known.
    pub cluster: Option<String>,
    /// The addresses that worked.
    pub apiservers: Vec<Remembered>,
}

impl Memory {
    /// Whether the cluster has one of these certificate authorities.
    pub fn is_of(&self, authorities: &Authorities) -> bool {
        self.authorities.iter().any(|known| authorities.include(known))
    }
}

#[derive(Serialize, Deserialize)]
struct Form {
    version: u32,
    /// The name of the whole bundle; the only field that an earlier version reads.
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
    /// The time when the address last worked, in seconds since 1970.
    worked: u64,
}

/// Reads the file in the state directory; `None` if it does not exist. May block.
///
/// # Errors
/// A sentence about the problem with the file. A file that cannot be decoded has been renamed.
pub fn load(directory: &Path) -> Result<Option<Memory>, String> {
    state::load(&directory.join(NAME), MAX_BYTES, understand)
}

/// Like [`load`], with a time limit: an unreachable file system must not prevent nodelb from starting.
///
/// # Errors
/// Those of [`load`], and a timeout after `timeout`.
pub async fn load_within(directory: PathBuf, timeout: Duration) -> Result<Option<Memory>, String> {
    let path = directory.join(NAME);
    let loading = state::aside(move || Ok(load(&directory)));
    let unread = |why: String| format!("{} cannot be read: {why}; going on without what it remembers", path.display());
    match tokio::time::timeout(timeout, loading).await {
        Ok(Ok(loaded)) => loaded,
        Ok(Err(error)) => Err(unread(error.to_string())),
        Err(_elapsed) => Err(unread(format!("not done within {timeout:?}"))),
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

/// Replaces the file atomically. May block.
///
/// # Errors
/// The error of the file system. The previous file remains.
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
#[path = "tests/remember.rs"]
mod tests;
