//! Runs exec credential plugins (`client.authentication.k8s.io/v1` and `v1beta1`, KEP-541), with a time limit and an
//! output limit, and decodes their output. [`credentials`](crate::apiserver::credentials) decides when to run a plugin.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use nodelb_core::text::is_control;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::login::{CredentialsError, Secret};
use crate::time;
use nodelb_host::threads::Threads;

/// The maximum size of a plugin's output in bytes.
const MAX_OUTPUT: u64 = 256 << 10;

/// The maximum size of its error output that is kept, in bytes.
const MAX_COMPLAINT: u64 = 4 << 10;

/// The maximum number of characters of its error output in a message.
const MAX_REPORTED: usize = 300;

pub(super) const API_VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plugin {
    pub(super) command: PathBuf,
    pub(super) args: Vec<String>,
    /// The variables that are added to nodelb's environment.
    pub(super) env: Vec<(String, Secret)>,
    /// One of [`API_VERSIONS`].
    pub(super) version: &'static str,
    pub(super) install_hint: Option<String>,
    /// The description of the cluster for the plugin, if requested.
    pub(super) cluster: Option<ClusterInfo>,
}

/// The cluster that the plugin provides credentials for (`provideClusterInfo`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct ClusterInfo {
    pub(super) server: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tls_server_name: Option<String>,
    /// The cluster's extension for plugins, unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) config: Option<serde_json::Value>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Credential {
    pub(super) token: Option<Secret>,
    /// Certificate and key in PEM.
    pub(super) certificate: Option<(Vec<u8>, Secret)>,
    pub(super) expires: Option<SystemTime>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    kind: String,
    api_version: String,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
    expiration_timestamp: Option<String>,
}

/// Kills a plugin and all processes that it has started, unless it has exited.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // Fails only if no process is left.
            let _ = killpg(leader, Signal::SIGKILL);
        }
    }
}

impl Plugin {
    pub(super) fn origin(&self) -> String {
        format!("exec plugin {}", self.command.display())
    }

    /// Runs the plugin. `authority` is the cluster's certificate authority in PEM.
    ///
    /// # Errors
    /// The plugin does not exist, fails, exceeds `timeout` (then it is killed), or prints invalid output.
    pub(super) async fn run(&self, authority: &[u8], timeout: Duration) -> Result<Credential, CredentialsError> {
        let wrong = |what: String| CredentialsError(format!("{} {what}", self.origin()));
        let late = |_elapsed| wrong(format!("took longer than {timeout:?} and was killed"));
        let deadline = Instant::now() + timeout;
        let starting = self.clone().start_aside(authority.to_vec());
        let started = timeout_at(deadline, starting).await.map_err(late)?;
        let (mut child, mut group) = started.map_err(|error| wrong(self.not_started(&error)))?;
        let (status, output, complaint) = timeout_at(deadline, finish(&mut child))
            .await
            .map_err(late)?
            .map_err(|error| wrong(format!("its output cannot be read: {error}")))?;
        group.0 = None;
        if !status.success() {
            return Err(wrong(format!("failed ({status}): {}", last_line(&complaint))));
        }
        if output.len() as u64 > MAX_OUTPUT {
            return Err(wrong(format!("printed more than {MAX_OUTPUT} bytes")));
        }
        self.read(&output).map_err(wrong)
    }

    /// Starts the plugin in its own thread, because the kernel reads a program when it starts, possibly from an
    /// unreachable file system. A plugin that starts after the timeout is killed.
    async fn start_aside(self, authority: Vec<u8>) -> io::Result<(Child, Group)> {
        static STARTS: LazyLock<Threads> = LazyLock::new(|| Threads::new("exec-plugin", 16));
        let runtime = Handle::current();
        let start = move || {
            let _runtime = runtime.enter();
            let child = self.start(&authority)?;
            let group = Group(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw));
            Ok((child, group))
        };
        STARTS.begin(start)?.await.map_err(io::Error::other)?
    }

    fn start(&self, authority: &[u8]) -> io::Result<Child> {
        Command::new(&self.command)
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, String::from_utf8_lossy(&value.0).into_owned())))
            .env("KUBERNETES_EXEC_INFO", self.info(authority))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
    }

    fn not_started(&self, error: &io::Error) -> String {
        let hint = match (error.kind(), &self.install_hint) {
            (io::ErrorKind::NotFound, Some(hint)) => format!("; its kubeconfig says: {}", printable(hint)),
            (io::ErrorKind::NotFound, None) => "; install it, or name it with its full path".into(),
            _ => String::new(),
        };
        format!("cannot be started: {error}{hint}")
    }

    fn info(&self, authority: &[u8]) -> String {
        let mut spec = serde_json::json!({ "interactive": false });
        if let Some(cluster) = &self.cluster {
            spec["cluster"] = serde_json::json!(cluster);
            spec["cluster"]["certificate-authority-data"] = STANDARD.encode(authority).into();
        }
        serde_json::json!({ "kind": "ExecCredential", "apiVersion": self.version, "spec": spec }).to_string()
    }

    /// The error must not quote the output, because it contains secrets.
    fn read(&self, output: &[u8]) -> Result<Credential, String> {
        let printed: ExecCredential = serde_json::from_slice(output).map_err(|error| {
            format!("did not print an ExecCredential (line {}, column {})", error.line(), error.column())
        })?;
        let expected = self.version;
        if printed.kind != "ExecCredential" || printed.api_version != expected {
            return Err(format!("did not print an ExecCredential of {expected}; correct apiVersion in the kubeconfig"));
        }
        let status = printed.status.ok_or("printed no status")?;
        let seconds = |text: String| time::seconds(&text).ok_or("printed an expirationTimestamp that is not RFC 3339");
        let seconds = status.expiration_timestamp.map(seconds).transpose()?;
        let expires = seconds.and_then(|seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
        let certificate = match (status.client_certificate_data, status.client_key_data) {
            (Some(certificate), Some(key)) => Some((certificate.into_bytes(), Secret(key.into_bytes()))),
            (None, None) => None,
            _ => return Err("printed only one of clientCertificateData and clientKeyData".into()),
        };
        let token = status.token.filter(|token| !token.is_empty()).map(|token| Secret(token.into_bytes()));
        if token.is_none() && certificate.is_none() {
            return Err("printed neither a token nor a client certificate".into());
        }
        Ok(Credential { token, certificate, expires })
    }
}

async fn finish(child: &mut Child) -> io::Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (output, complaint) = tokio::try_join!(beginning(stdout, MAX_OUTPUT + 1), beginning(stderr, MAX_COMPLAINT))?;
    Ok((child.wait().await?, output, complaint))
}

/// The first bytes. The rest is read and dropped, so that the writer does not block forever.
async fn beginning(from: Option<impl AsyncRead + Unpin>, most: u64) -> io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    if let Some(mut from) = from {
        (&mut from).take(most).read_to_end(&mut kept).await?;
        tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    }
    Ok(kept)
}

fn last_line(complaint: &[u8]) -> String {
    let text = String::from_utf8_lossy(complaint);
    let line = text.lines().rfind(|line| !line.trim().is_empty());
    line.map_or_else(|| "no reason given".into(), printable)
}

fn printable(text: &str) -> String {
    text.trim().chars().map(|c| if is_control(c) { ' ' } else { c }).take(MAX_REPORTED).collect()
}

#[cfg(test)]
#[path = "tests/exec.rs"]
mod tests;
