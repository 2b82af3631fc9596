//! Reads the files that the credentials consist of, with a size limit, but not the output of an exec plugin. Detects
//! changes without reading. Blocks.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::credstore;
use super::exec::Plugin;
use super::kubeconfig::{self, Part};
use super::login::{CredentialsError, Material, Piece, Secret};
use crate::apiserver::address::Server;
use crate::apiserver::settings::Settings;

/// The maximum size of a file in bytes.
const MAX_SIZE: u64 = 1 << 20;

#[derive(Clone, Debug)]
pub(super) enum Origin {
    Kubeconfig(PathBuf),
    Files { authority: PathBuf, token: Option<PathBuf> },
}

impl Origin {
    pub(super) fn new(settings: &Settings) -> Result<Self, CredentialsError> {
        match (&settings.kubeconfig, &settings.ca_file) {
            (Some(kubeconfig), _) => Ok(Self::Kubeconfig(kubeconfig.clone())),
            (None, Some(authority)) => {
                Ok(Self::Files { authority: authority.clone(), token: settings.token_file.clone() })
            }
            (None, None) => {
                let message = "no credentials for Kubernetes: set kubeconfig, or ca-file and token-file";
                Err(CredentialsError(message.into()))
            }
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubeconfig(path) => write!(f, "kubeconfig {}", path.display()),
            Self::Files { authority, token: None } => write!(f, "{}", authority.display()),
            Self::Files { authority, token: Some(token) } => {
                write!(f, "{} or {}", authority.display(), token.display())
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) server: Option<Server>,
    /// The parts of a login, without the output of the plugin.
    pub(super) material: Material,
    pub(super) plugin: Option<Plugin>,
    pub(super) notices: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Looked {
    pub(super) stamps: Reading,
    /// The contents; `None` if nothing has changed.
    pub(super) outcome: Option<Result<Inputs, CredentialsError>>,
}

/// Reads the files if one has changed, if none was read before, or if `anyway` is set.
pub(super) fn read_changed(origin: &Origin, before: Reading, anyway: bool) -> Looked {
    if !anyway && !before.is_outdated() {
        return Looked { stamps: before, outcome: None };
    }
    let mut stamps = Reading::default();
    let outcome = match origin {
        Origin::Kubeconfig(path) => read_kubeconfig(path, &mut stamps),
        Origin::Files { authority, token } => read_files(authority, token.as_deref(), &mut stamps),
    };
    Looked { stamps, outcome: Some(outcome) }
}

fn read_files(authority: &Path, token: Option<&Path>, files: &mut Reading) -> Result<Inputs, CredentialsError> {
    let token = token.map(|token| files.read(token)).transpose()?.map(secret);
    let authority = files.read(authority)?;
    let material = Material { authority, certificate: None, token };
    Ok(Inputs { server: None, material, plugin: None, notices: Vec::new() })
}

fn read_kubeconfig(path: &Path, files: &mut Reading) -> Result<Inputs, CredentialsError> {
    let file = files.read(path).map_err(|error| CredentialsError(format!("kubeconfig {error}")))?;
    let text = String::from_utf8(file.content)
        .ok()
        .ok_or_else(|| CredentialsError(format!("kubeconfig {} is not text", path.display())))?;
    let kubeconfig = kubeconfig::parse(&text, path)?;
    let certificate = match kubeconfig.certificate {
        Some((certificate, key)) => Some((piece(certificate, files)?, secret(piece(key, files)?))),
        None => None,
    };
    let material = Material {
        authority: piece(kubeconfig.authority, files)?,
        certificate,
        token: kubeconfig.token.map(|token| piece(token, files)).transpose()?.map(secret),
    };
    Ok(Inputs { server: Some(kubeconfig.server), material, plugin: kubeconfig.plugin, notices: kubeconfig.notices })
}

fn piece(part: Part, files: &mut Reading) -> Result<Piece<Vec<u8>>, CredentialsError> {
    match part {
        Part::Inline(content, origin) => Ok(Piece { content: content.0, origin }),
        Part::File(path) => files.read(&path),
    }
}

fn secret(piece: Piece<Vec<u8>>) -> Piece<Secret> {
    Piece { content: Secret(piece.content), origin: piece.origin }
}

/// Identifies the version of a file, after symbolic links are resolved: device, inode and size, and modification and
/// change time with nanoseconds; or the error if they are unknown.
type Stamp = Result<([u64; 3], [i64; 4]), io::ErrorKind>;

fn stamp(path: &Path) -> Stamp {
    let file = fs::metadata(path).map_err(|error| error.kind())?;
    let times = [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()];
    Ok(([file.dev(), file.ino(), file.size()], times))
}

/// Reads files, and records the metadata of each just before, so that a change during the read is detected the next
/// time.
#[derive(Debug, Default)]
pub(super) struct Reading {
    stamps: BTreeMap<PathBuf, Stamp>,
}

impl Reading {
    /// Whether one of the files has changed, or none was read yet.
    pub(super) fn is_outdated(&self) -> bool {
        self.stamps.is_empty() || self.stamps.iter().any(|(path, before)| stamp(path) != *before)
    }

    /// Every file that was read or could not be read.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        self.stamps.keys().cloned().collect()
    }

    pub(super) fn read(&mut self, path: &Path) -> Result<Piece<Vec<u8>>, CredentialsError> {
        self.stamps.insert(path.to_owned(), stamp(path));
        let origin = path.display().to_string();
        match read(path) {
            Ok(content) => Ok(Piece { content, origin }),
            Err(error) => {
                let remedy = credstore::remedy(path, &error).map(|remedy| format!("; {remedy}")).unwrap_or_default();
                Err(CredentialsError(format!("{origin} cannot be read: {error}{remedy}")))
            }
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Without O_NONBLOCK, opening a named pipe would wait for a writer.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut content = Vec::new();
    file.take(MAX_SIZE + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_SIZE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 1 MiB"));
    }
    Ok(content)
}

#[cfg(test)]
#[path = "tests/files.rs"]
mod tests;
