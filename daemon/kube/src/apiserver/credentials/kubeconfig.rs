//! Interprets a kubeconfig: the server, the trusted certificate authority and the user of its current context. Pure:
//! returns the paths of referenced files, but does not read them. A feature that nodelb does not support is an error
//! and not ignored.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::{AuthInfo, Cluster, ExecConfig, ExecInteractiveMode, Kubeconfig as Document};
use secrecy::{ExposeSecret, SecretString};

use super::exec::{API_VERSIONS, ClusterInfo, Plugin};
use super::login::{CredentialsError, Secret};
use crate::apiserver::address::{Address, AddressError, Server};
use crate::apiserver::url::Shown;

/// The name of the cluster extension for exec plugins.
const FOR_PLUGINS: &str = "client.authentication.k8s.io/exec";

/// The current context of a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kubeconfig {
    pub(super) server: Server,
    pub(super) authority: Part,
    pub(super) certificate: Option<(Part, Part)>,
    pub(super) token: Option<Part>,
    pub(super) plugin: Option<Plugin>,
    /// Warnings about settings that nodelb ignores.
    pub(super) notices: Vec<String>,
}

/// The location of a certificate, key or token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// In the kubeconfig: the content, and a description of its location.
    Inline(Secret, String),
    File(PathBuf),
}

/// Decodes the kubeconfig at `path`.
///
/// # Errors
/// The first invalid or unsupported setting, with the file, the field and the remedy.
pub(super) fn parse(text: &str, path: &Path) -> Result<Kubeconfig, CredentialsError> {
    let reader = Reader { path };
    let Document { current_context, contexts, clusters, auth_infos, .. } =
        decode(text).map_err(|error| reader.wrong(&error))?;
    let Some(context_name) = filled(&current_context) else {
        return Err(reader.wrong("current-context is not set; set it to the context nodelb is to use"));
    };
    let contexts = contexts.into_iter().map(|named| (named.name, named.context));
    let context = reader.find(contexts, "context", context_name)?;
    let (cluster_name, user_name) = (&context.cluster, filled(&context.user).unwrap_or_default());
    let clusters = clusters.into_iter().map(|named| (named.name, named.cluster));
    let cluster = &reader.find(clusters, "cluster", cluster_name)?;
    let users = auth_infos.into_iter().map(|named| (named.name, named.auth_info));
    let user = &reader.find(users, "user", user_name)?;

    let of_cluster = format!("cluster `{cluster_name}`");
    let of_user = format!("user `{user_name}`");
    reader.refuse_cluster(cluster, &of_cluster)?;
    reader.refuse_user(user, &of_user)?;
    let mut notices = Vec::new();
    if let Some(proxy) = filled(&cluster.proxy_url) {
        notices.push(format!(
            "{}: {of_cluster} has proxy-url {}, which nodelb ignores; set kubernetes.proxy to use a proxy",
            path.display(),
            Shown(proxy)
        ));
    }
    let authority = reader
        .part(
            "certificate-authority",
            [filled(&cluster.certificate_authority_data), filled(&cluster.certificate_authority)],
            &of_cluster,
        )?
        .ok_or_else(|| {
            reader.wrong(&format!(
                "{of_cluster} has no certificate-authority; set it, or certificate-authority-data (the system's \
                 authorities are not used)"
            ))
        })?;
    let address = server_address(filled(&cluster.server).unwrap_or_default())
        .map_err(|what| reader.wrong(&format!("server of {of_cluster}: {what}")))?;
    let server = Server { address, tls_server_name: filled(&cluster.tls_server_name).map(Into::into) };
    let (certificate, token) = (reader.certificate(user, &of_user)?, reader.token(user, &of_user));
    if certificate.is_none() && token.is_none() && user.exec.is_none() {
        notices.push(format!(
            "{}: {of_user} has no client certificate, no token and no exec: nodelb connects as an anonymous client, \
             which API servers refuse unless they are configured otherwise",
            path.display()
        ));
    }
    reader.refuse_impersonation(user, &of_user)?;
    Ok(Kubeconfig {
        plugin: user.exec.as_ref().map(|exec| reader.plugin(exec, cluster, &of_user)).transpose()?,
        certificate,
        token,
        server,
        authority,
        notices,
    })
}

fn filled(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

fn exposed(secret: &Option<SecretString>) -> Option<&str> {
    secret.as_ref().map(ExposeSecret::expose_secret).filter(|text| !text.is_empty())
}

/// Decodes the YAML. The error does not quote a value, because the value may be secret.
fn decode(text: &str) -> Result<Document, String> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_events: 100_000,
            max_nodes: 100_000,
            max_depth: 32,
            max_aliases: 100,
            max_anchors: 100,
        },
    };
    let document: Result<Option<Document>, _> = serde_saphyr::from_str_with_options(text, options);
    document.map(Option::unwrap_or_default).map_err(|error| {
        let line = error.location().map(|at| format!(" at line {}", at.line())).unwrap_or_default();
        format!("it is not readable as a kubeconfig{line}: YAML is broken there, or the value is of another kind than kubectl writes")
    })
}

/// Decodes `https://HOST[:PORT]`, with a scheme in any case.
fn server_address(url: &str) -> Result<Address, String> {
    if url.is_empty() {
        return Err("is not set; set it to https://HOST:PORT".into());
    }
    let shown = Shown(url);
    let rest = url
        .split_at_checked("https://".len())
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("https://"))
        .map(|(_, rest)| rest)
        .ok_or_else(|| format!("`{shown}` does not begin with https://; nodelb speaks TLS only"))?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if !path.is_empty() {
        return Err(format!(
            "`{shown}` has a path: that is a proxy, which other apiservers of the cluster do not go through; name the apiserver itself"
        ));
    }
    let parsed = match authority.parse() {
        Err(AddressError::Form(_)) => format!("{authority}:443").parse(),
        other => other,
    };
    parsed.map_err(|error| match error {
        AddressError::Form(_) => format!("`{shown}` is not https://HOST:PORT"),
        AddressError::Unusable(..) => error.to_string(),
    })
}

struct Reader<'a> {
    path: &'a Path,
}

impl Reader<'_> {
    fn wrong(&self, what: &str) -> CredentialsError {
        CredentialsError(format!("kubeconfig {}: {what}", self.path.display()))
    }

    fn find<T: Default>(
        &self,
        list: impl Iterator<Item = (String, Option<T>)>,
        kind: &str,
        name: &str,
    ) -> Result<T, CredentialsError> {
        let mut found = list.filter(|(of, _)| of == name);
        match (found.next(), found.next()) {
            (Some((_, content)), None) => Ok(content.unwrap_or_default()),
            (Some(_), Some(_)) => Err(self.wrong(&format!("two {kind}s are named `{name}`; keep one"))),
            (None, _) => {
                Err(self.wrong(&format!("there is no {kind} `{name}`, which the current context names; add it")))
            }
        }
    }

    fn refuse_cluster(&self, cluster: &Cluster, of: &str) -> Result<(), CredentialsError> {
        if cluster.insecure_skip_tls_verify == Some(true) {
            return Err(self.wrong(&format!(
                "{of} has insecure-skip-tls-verify, which would accept any server as the apiserver; set \
                 certificate-authority instead"
            )));
        }
        Ok(())
    }

    fn refuse_user(&self, user: &AuthInfo, of: &str) -> Result<(), CredentialsError> {
        let refused = [
            ("username", filled(&user.username).is_some()),
            ("password", exposed(&user.password).is_some()),
            ("auth-provider", user.auth_provider.is_some()),
        ];
        if let Some((field, _)) = refused.iter().find(|(_, is_set)| *is_set) {
            return Err(self.wrong(&format!(
                "{of} has {field}, which Kubernetes no longer knows; use a client certificate, a token or exec"
            )));
        }
        let has_token = exposed(&user.token).is_some() || filled(&user.token_file).is_some();
        if user.exec.is_some() && has_token {
            return Err(self.wrong(&format!("{of} has both exec and a token; keep one")));
        }
        Ok(())
    }

    /// Like in kubectl, data in the kubeconfig takes precedence over a file.
    fn part(&self, field: &str, [data, file]: [Option<&str>; 2], of: &str) -> Result<Option<Part>, CredentialsError> {
        if let Some(data) = data {
            let compact: String = data.chars().filter(|c| !c.is_whitespace()).collect();
            // The error of the decoder would quote data, which may be a key.
            let bytes = STANDARD.decode(compact).ok().ok_or_else(|| {
                self.wrong(&format!("{field}-data of {of} is not base64; encode the PEM file with `base64 -w0`"))
            })?;
            let origin = format!("{field}-data of {of} in {}", self.path.display());
            return Ok(Some(Part::Inline(Secret(bytes), origin)));
        }
        Ok(file.map(|file| Part::File(self.relative(file))))
    }

    fn certificate(&self, user: &AuthInfo, of: &str) -> Result<Option<(Part, Part)>, CredentialsError> {
        let certificate = [filled(&user.client_certificate_data), filled(&user.client_certificate)];
        let certificate = self.part("client-certificate", certificate, of)?;
        let key = self.part("client-key", [exposed(&user.client_key_data), filled(&user.client_key)], of)?;
        match (certificate, key) {
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (None, None) => Ok(None),
            (Some(_), None) => Err(self.wrong(&format!("{of} has a client-certificate, but no client-key; add it"))),
            (None, Some(_)) => Err(self.wrong(&format!("{of} has a client-key, but no client-certificate; add it"))),
        }
    }

    /// A token file takes precedence over a token, which only caches the last content of the file.
    fn token(&self, user: &AuthInfo, of: &str) -> Option<Part> {
        let file = filled(&user.token_file).map(|file| Part::File(self.relative(file)));
        let inline = |token: &str| {
            let origin = format!("token of {of} in {}", self.path.display());
            Part::Inline(Secret(token.as_bytes().to_vec()), origin)
        };
        file.or_else(|| exposed(&user.token).map(inline))
    }

    /// Requests in another user's name would otherwise be made in that of the credentials.
    fn refuse_impersonation(&self, user: &AuthInfo, of: &str) -> Result<(), CredentialsError> {
        let AuthInfo { impersonate, impersonate_uid, impersonate_groups, impersonate_user_extra, .. } = user;
        let is_asked_for = [impersonate, impersonate_uid].into_iter().flatten().any(|text| !text.is_empty())
            || impersonate_groups.as_ref().is_some_and(|groups| !groups.is_empty())
            || impersonate_user_extra.as_ref().is_some_and(|extra| !extra.is_empty());
        let why = format!("{of} has `as` or `as-…`: nodelb acts in no other user's name; use credentials of that user");
        if is_asked_for { Err(self.wrong(&why)) } else { Ok(()) }
    }

    fn plugin(&self, exec: &ExecConfig, cluster: &Cluster, of: &str) -> Result<Plugin, CredentialsError> {
        let Some(command) = filled(&exec.command) else {
            return Err(self.wrong(&format!("exec of {of} has no command; set it")));
        };
        let wanted = filled(&exec.api_version).unwrap_or_default();
        let version = API_VERSIONS.into_iter().find(|version| *version == wanted).ok_or_else(|| {
            self.wrong(&format!(
                "exec of {of} has apiVersion `{}`; client.authentication.k8s.io/v1 or v1beta1 is expected",
                wanted.escape_debug()
            ))
        })?;
        if exec.interactive_mode == Some(ExecInteractiveMode::Always) {
            return Err(self.wrong(&format!("exec of {of} has interactiveMode Always, but nodelb is not interactive")));
        }
        // Like in kubectl, a command with a slash is relative to the kubeconfig; any other command is searched in PATH.
        let command = if command.contains('/') { self.relative(command) } else { command.into() };
        let env = exec.env.iter().flatten().filter_map(|variable| {
            let value = variable.get("value").cloned().unwrap_or_default();
            Some((variable.get("name")?.clone(), Secret(value.into())))
        });
        let mut extensions = cluster.extensions.iter().flatten();
        let cluster = exec.provide_cluster_info.then(|| ClusterInfo {
            server: cluster.server.clone().unwrap_or_default(),
            tls_server_name: cluster.tls_server_name.clone(),
            config: extensions.find(|entry| entry.name == FOR_PLUGINS).map(|it| it.extension.clone()),
        });
        let install_hint = filled(&exec.install_hint).map(Into::into);
        Ok(Plugin {
            command,
            args: exec.args.clone().unwrap_or_default(),
            env: env.collect(),
            version,
            install_hint,
            cluster,
        })
    }

    fn relative(&self, file: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(file)
    }
}

#[cfg(test)]
#[path = "tests/kubeconfig.rs"]
mod tests;
