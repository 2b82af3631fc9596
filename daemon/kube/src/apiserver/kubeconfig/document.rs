//! The fields of a kubeconfig (`client-go/tools/clientcmd/api/v1`) that nodelb uses, in their original form.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::any::Any;
use crate::null::null_is_default;

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct Document {
    #[serde(deserialize_with = "null_is_default")]
    pub(super) current_context: String,
    #[serde(deserialize_with = "null_is_default")]
    pub(super) contexts: Vec<Named<Context>>,
    #[serde(deserialize_with = "null_is_default")]
    pub(super) clusters: Vec<Named<Cluster>>,
    #[serde(deserialize_with = "null_is_default")]
    pub(super) users: Vec<Named<User>>,
}

#[derive(Deserialize)]
#[serde(bound = "T: Default + Deserialize<'de>")]
pub(super) struct Named<T> {
    pub(super) name: String,
    #[serde(alias = "context", alias = "cluster", alias = "user", default, deserialize_with = "null_is_default")]
    pub(super) content: T,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Context {
    #[serde(deserialize_with = "null_is_default")]
    pub(super) cluster: String,
    #[serde(deserialize_with = "null_is_default")]
    pub(super) user: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct Cluster {
    #[serde(deserialize_with = "null_is_default")]
    pub(super) server: String,
    #[serde(rename = "certificate-authority")]
    pub(super) authority: Option<String>,
    #[serde(rename = "certificate-authority-data")]
    pub(super) authority_data: Option<String>,
    pub(super) tls_server_name: Option<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub(super) insecure_skip_tls_verify: bool,
    pub(super) proxy_url: Option<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub(super) extensions: Vec<Extension>,
}

#[derive(Deserialize)]
pub(super) struct Extension {
    pub(super) name: String,
    #[serde(default)]
    pub(super) extension: Any,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct User {
    #[serde(rename = "client-certificate")]
    pub(super) certificate: Option<String>,
    #[serde(rename = "client-certificate-data")]
    pub(super) certificate_data: Option<String>,
    #[serde(rename = "client-key")]
    pub(super) key: Option<String>,
    #[serde(rename = "client-key-data")]
    pub(super) key_data: Option<String>,
    pub(super) token: Option<String>,
    #[serde(rename = "tokenFile")]
    pub(super) token_file: Option<String>,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    #[serde(rename = "auth-provider")]
    pub(super) auth_provider: Option<IgnoredAny>,
    pub(super) exec: Option<Exec>,
    #[serde(rename = "as", deserialize_with = "null_is_default")]
    pub(super) impersonate: String,
    #[serde(rename = "as-uid", deserialize_with = "null_is_default")]
    pub(super) impersonate_uid: String,
    #[serde(rename = "as-groups", deserialize_with = "null_is_default")]
    pub(super) impersonate_groups: Vec<String>,
    #[serde(rename = "as-user-extra", deserialize_with = "null_is_default")]
    pub(super) impersonate_extra: BTreeMap<String, Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Exec {
    #[serde(deserialize_with = "null_is_default")]
    pub(super) command: String,
    #[serde(deserialize_with = "null_is_default")]
    pub(super) args: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub(super) env: Vec<Variable>,
    #[serde(deserialize_with = "null_is_default")]
    pub(super) api_version: String,
    #[serde(deserialize_with = "null_is_default")]
    pub(super) provide_cluster_info: bool,
    pub(super) interactive_mode: Option<String>,
    pub(super) install_hint: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Variable {
    pub(super) name: String,
    #[serde(default, deserialize_with = "null_is_default")]
    pub(super) value: String,
}

/// Decodes the YAML. The error does not quote a value, because the value may be secret.
pub(super) fn parse(text: &str) -> Result<Document, String> {
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
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().map(|at| format!(" at line {}", at.line())).unwrap_or_default();
        format!("it is not readable as a kubeconfig{line}: YAML is broken there, or the value is of another kind than kubectl writes")
    })
}
