//! Reads the files that the credentials consist of, but not the output of an exec plugin. Blocks.

use std::fmt;
use std::path::{Path, PathBuf};

pub(super) use crate::apiserver::files::Reading as Stamps;

use crate::apiserver::address::Server;
use crate::apiserver::exec::Plugin;
use crate::apiserver::impersonation::Impersonation;
use crate::apiserver::kubeconfig::{self, Part};
use crate::apiserver::login::{CredentialsError, Piece, Secret};
use crate::apiserver::session::Settings;

/// The source of the credentials.
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
    pub(super) authority: Piece<Vec<u8>>,
    pub(super) certificate: Option<(Piece<Vec<u8>>, Piece<Secret>)>,
    pub(super) token: Option<Piece<Secret>>,
    pub(super) plugin: Option<Plugin>,
    pub(super) impersonation: Option<Impersonation>,
    pub(super) notices: Vec<String>,
}

/// The result of reading the files.
#[derive(Debug)]
pub(super) struct Looked {
    pub(super) stamps: Stamps,
    /// The contents; `None` if nothing has changed.
    pub(super) outcome: Option<Result<Inputs, CredentialsError>>,
}

/// Reads the files if one has changed, if none was read before, or if `anyway` is set.
pub(super) fn read_changed(origin: &Origin, before: Stamps, anyway: bool) -> Looked {
    if !anyway && !before.is_outdated() {
        return Looked { stamps: before, outcome: None };
    }
    let mut stamps = Stamps::default();
    let outcome = match origin {
        Origin::Kubeconfig(path) => read_kubeconfig(path, &mut stamps),
        Origin::Files { authority, token } => read_files(authority, token.as_deref(), &mut stamps),
    };
    Looked { stamps, outcome: Some(outcome) }
}

fn read_files(authority: &Path, token: Option<&Path>, files: &mut Stamps) -> Result<Inputs, CredentialsError> {
    let token = token.map(|token| files.read(token)).transpose()?.map(secret);
    let authority = files.read(authority)?;
    let (certificate, plugin, impersonation) = (None, None, None);
    Ok(Inputs { server: None, authority, certificate, token, plugin, impersonation, notices: Vec::new() })
}

fn read_kubeconfig(path: &Path, files: &mut Stamps) -> Result<Inputs, CredentialsError> {
    let file = files.read(path).map_err(|error| CredentialsError(format!("kubeconfig {error}")))?;
    let text = String::from_utf8(file.content)
        .ok()
        .ok_or_else(|| CredentialsError(format!("kubeconfig {} is not text", path.display())))?;
    let kubeconfig = kubeconfig::parse(&text, path)?;
    let certificate = match kubeconfig.certificate {
        Some((certificate, key)) => Some((piece(certificate, files)?, secret(piece(key, files)?))),
        None => None,
    };
    Ok(Inputs {
        server: Some(kubeconfig.server),
        authority: piece(kubeconfig.authority, files)?,
        certificate,
        token: kubeconfig.token.map(|token| piece(token, files)).transpose()?.map(secret),
        plugin: kubeconfig.plugin,
        impersonation: kubeconfig.impersonation,
        notices: kubeconfig.notices,
    })
}

fn piece(part: Part, files: &mut Stamps) -> Result<Piece<Vec<u8>>, CredentialsError> {
    match part {
        Part::Inline(content, origin) => Ok(Piece { content: content.0, origin }),
        Part::File(path) => files.read(&path),
    }
}

fn secret(piece: Piece<Vec<u8>>) -> Piece<Secret> {
    Piece { content: Secret(piece.content), origin: piece.origin }
}
