//! The current credentials, from a kubeconfig, or from a token file and a CA file. Decides when to read them again, and
//! keeps the last valid ones while the new ones cannot be used. [`kubeconfig`],
//! [`exec`] and [`login`] interpret the contents.

pub mod authorities;
pub mod credstore;
mod exec;
mod files;
mod kubeconfig;
pub mod login;
mod plugin;
mod timeouts;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use nodelb_host::messages;
use tokio::sync::oneshot;
use tracing::warn;

use self::authorities::Authorities;
use self::files::{Inputs, Looked, Origin, Reading};
pub use self::login::CredentialsError;
use self::login::{Login, Material, Piece};
use self::plugin::{Printed, Want};
pub use self::timeouts::CredentialTimeouts;
use super::address::{Host, Server};
use super::settings::Settings;
use nodelb_host::threads::Threads;

/// Reads the credentials once, without running an exec plugin. Blocks. Returns warnings about settings that nodelb
/// ignores.
pub fn check(settings: &Settings) -> Result<Vec<String>, CredentialsError> {
    let looked = files::read_changed(&Origin::new(settings)?, Reading::default(), true);
    let Some(inputs) = looked.outcome.transpose()? else { return Ok(Vec::new()) };
    if let Some(material) = material(&inputs, None) {
        Login::new(&material, None)?;
    }
    let problem = inputs.server.as_ref().and_then(|server| service_address(server, settings));
    match problem {
        Some(problem) if settings.servers.is_empty() => Err(CredentialsError(problem)),
        problem => Ok(inputs.notices.into_iter().chain(problem.map(|problem| format!("note: {problem}"))).collect()),
    }
}

/// Why the server of a kubeconfig, which a pod may have made, is no apiserver.
fn service_address(server: &Server, settings: &Settings) -> Option<String> {
    let Host::Ip(ip) = server.address.host else { return None };
    let net = settings.service_cidrs.iter().find(|net| net.contains(&ip))?;
    let path = settings.kubeconfig.as_ref()?.display();
    Some(format!(
        "{path}: its server {} is a service address (it lies in {net}), and nodelb never translates its own connections; \
         write an address the apiserver itself listens on",
        server.address
    ))
}

/// The files and programs that the credentials depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The files of all references that could be read.
    pub files: Vec<PathBuf>,
    /// The path of the exec plugin, if its command contains a path.
    pub plugin: Option<PathBuf>,
}

/// Reads the credentials once to find the files that they consist of; `None` if no credentials are configured. Blocks.
pub fn named(settings: &Settings) -> Option<Named> {
    let looked = files::read_changed(&Origin::new(settings).ok()?, Reading::default(), true);
    let plugin = looked.outcome.and_then(Result::ok).and_then(|inputs| inputs.plugin);
    let plugin = plugin.map(|plugin| plugin.command).filter(|command| command.is_absolute());
    Some(Named { files: looked.stamps.files(), plugin })
}

pub struct Credentials {
    origin: Origin,
    timeouts: CredentialTimeouts,
    state: tokio::sync::Mutex<State>,
    server: Mutex<Option<Server>>,
    rejected: Mutex<Option<Arc<Login>>>,
    /// The thread that reads the files; at most one.
    threads: Threads,
}

#[derive(Default)]
struct State {
    /// The read in progress. It continues after a caller has stopped waiting, so that an unreachable file system blocks
    /// only one thread.
    looking: Option<oneshot::Receiver<Looked>>,
    read: Reading,
    inputs: Option<Inputs>,
    /// The reason why the current contents of the files cannot be used.
    unusable: Option<CredentialsError>,
    printed: Option<Printed>,
    good: Option<Good>,
    /// Why the latest [`Credentials::login`] returned the last valid login. Each reason is logged once.
    trouble: Option<String>,
}

struct Good {
    material: Material,
    login: Arc<Login>,
}

impl Credentials {
    /// Reads nothing yet.
    ///
    /// # Errors
    /// The settings contain neither a kubeconfig nor a CA file.
    pub fn new(settings: &Settings, timeouts: CredentialTimeouts) -> Result<Self, CredentialsError> {
        let origin = Origin::new(settings)?;
        let (state, server, rejected) = (State::default(), Mutex::default(), Mutex::default());
        let threads = Threads::new("credentials", 1);
        Ok(Self { origin, timeouts, state: state.into(), server, rejected, threads })
    }

    /// The current login; the same object as before unless the credentials have changed. Without a change, this only
    /// compares file metadata. If the current credentials cannot be used, logs one warning and returns the last valid
    /// login.
    ///
    /// # Errors
    /// There has been no valid login yet. The error names the problem and the file or plugin.
    pub async fn login(&self) -> Result<Arc<Login>, CredentialsError> {
        let mut state = self.state.lock().await;
        let outcome = self.refresh(&mut state).await;
        let Some(login) = state.good.as_ref().map(|good| Arc::clone(&good.login)) else {
            return Err(outcome.err().unwrap_or_else(|| CredentialsError("the credentials were not read".into())));
        };
        let trouble = outcome.err().map(|error| error.to_string());
        if let Some(trouble) = trouble.as_ref().filter(|trouble| state.trouble.as_ref() != Some(trouble)) {
            warn!(
                message_id = %messages::LOGIN_FAILED,
                "{trouble}; keeping the previous credentials, {}", login.identity
            );
        }
        state.trouble = trouble;
        Ok(login)
    }

    /// Why the latest [`Self::login`] returned the last valid login instead of one with the current credentials.
    pub async fn trouble(&self) -> Option<String> {
        self.state.lock().await.trouble.clone()
    }

    /// The cluster's identity, like [`Login::authority`], without running an exec plugin.
    pub async fn authority(&self) -> Result<Authorities, CredentialsError> {
        let mut state = self.state.lock().await;
        self.reread(&mut state, false).await?;
        match (&state.inputs, &state.unusable) {
            (Some(inputs), _) => login::authority(&inputs.material.authority),
            (None, unusable) => {
                Err(unusable.clone().unwrap_or_else(|| CredentialsError("the credentials were not read".into())))
            }
        }
    }

    /// The server in the kubeconfig; `None` without a kubeconfig and before the first [`Self::login`].
    pub fn server(&self) -> Option<Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records that an apiserver responded with 401 to this login. The next [`Self::login`] reads the files even if
    /// their metadata is unchanged, and runs the exec plugin.
    pub fn reject(&self, login: &Arc<Login>) {
        *self.rejected.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(login));
    }

    async fn refresh(&self, state: &mut State) -> Result<(), CredentialsError> {
        let rejected = self.rejected.lock().unwrap_or_else(PoisonError::into_inner).take();
        let is_rejected =
            rejected.is_some_and(|login| state.good.as_ref().is_some_and(|good| Arc::ptr_eq(&good.login, &login)));
        self.reread(state, is_rejected).await?;
        let ran = self.run_plugin(state, is_rejected).await;
        self.build(state)?;
        state.unusable.clone().map_or(ran, Err)
    }

    /// Reads the files if they have changed, or if `anyway` is set.
    async fn reread(&self, state: &mut State, anyway: bool) -> Result<(), CredentialsError> {
        let looking = match &mut state.looking {
            Some(looking) => looking,
            none => {
                let (origin, stamps) = (self.origin.clone(), std::mem::take(&mut state.read));
                let begun = self.threads.begin(move || files::read_changed(&origin, stamps, anyway));
                none.insert(begun.map_err(|error| CredentialsError(format!("{}: {error}", self.origin)))?)
            }
        };
        let Ok(looked) = tokio::time::timeout(self.timeouts.files, looking).await else {
            let (origin, timeout) = (&self.origin, self.timeouts.files);
            return Err(CredentialsError(format!(
                "reading {origin} timed out after {timeout:?}: check its file system"
            )));
        };
        state.looking = None;
        let failed = |error| CredentialsError(format!("{}: the task that reads it failed: {error}", self.origin));
        let looked = looked.map_err(failed)?;
        state.read = looked.stamps;
        match looked.outcome {
            None => {}
            Some(Err(error)) => state.unusable = Some(error),
            Some(Ok(inputs)) => {
                let reported = state.inputs.as_ref().map(|inputs| &inputs.notices);
                if reported != Some(&inputs.notices) {
                    inputs.notices.iter().for_each(|notice| warn!(message_id = %messages::LOGIN_FAILED, "{notice}"));
                }
                state.unusable = None;
                state.inputs = Some(inputs);
            }
        }
        Ok(())
    }

    /// Runs the exec plugin, if there is one and its credentials are missing, rejected, or about to expire.
    async fn run_plugin(&self, state: &mut State, is_rejected: bool) -> Result<(), CredentialsError> {
        let plugin = state.inputs.as_ref().and_then(|inputs| inputs.plugin.as_ref().map(|plugin| (inputs, plugin)));
        let Some((inputs, plugin)) = plugin else {
            state.printed = None;
            return Ok(());
        };
        let printed = match &mut state.printed {
            Some(printed) if printed.is_of(plugin) => printed,
            other => other.insert(Printed::new(plugin.clone())),
        };
        let of_login = state.good.as_ref().and_then(|good| good.login.expires);
        let ends = printed.last_good().and_then(|credential| credential.expires.or(of_login));
        let want = Want { has_login: state.good.is_some(), is_rejected, ends };
        printed.refresh(&inputs.material.authority.content, want, &self.timeouts).await
    }

    fn build(&self, state: &mut State) -> Result<(), CredentialsError> {
        let Some(inputs) = &state.inputs else { return Ok(()) };
        let Some(material) = material(inputs, state.printed.as_ref()) else { return Ok(()) };
        if state.good.as_ref().is_none_or(|good| good.material != material) {
            let before = state.good.as_ref().map(|good| (&good.material, &*good.login));
            let login = Arc::new(Login::new(&material, before)?);
            state.good = Some(Good { material, login });
        }
        self.server.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&inputs.server);
        Ok(())
    }
}

/// The material for a login; `None` while an exec plugin has not printed any credentials.
fn material(inputs: &Inputs, printed: Option<&Printed>) -> Option<Material> {
    let mut material = inputs.material.clone();
    if let Some(plugin) = &inputs.plugin {
        let credential = printed?.last_good()?;
        let origin = plugin.origin();
        if let Some((certificate, key)) = &credential.certificate {
            let certificate = Piece { content: certificate.clone(), origin: origin.clone() };
            material.certificate = Some((certificate, Piece { content: key.clone(), origin: origin.clone() }));
        }
        material.token = credential.token.clone().map(|content| Piece { content, origin });
    }
    Some(material)
}

#[cfg(test)]
#[path = "tests/credentials.rs"]
mod tests;
