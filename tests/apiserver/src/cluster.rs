//! A cluster: what all its apiservers share, and what tests do to it directly.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::Context;
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::access::{Access, Role, User};
use crate::accounts;
use crate::clock::rfc3339;
use crate::fields::Writer;
use crate::identity::{Certificate, Identity};
use crate::pools::{Pools, Ranges};
use crate::resource::{RESOURCES, Resource};
use crate::status::Status;
use crate::store::Key;
use crate::write::{Part, Patch, State, Write};

/// A cluster; a clone is another handle on the same one.
#[derive(Clone, Debug)]
pub struct Cluster {
    shared: Arc<Shared>,
    /// Who is written down as the writer of what is written through this handle.
    writer: Arc<str>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    access: Mutex<Access>,
    /// Counts changes; watches wait for it.
    changes: watch::Sender<u64>,
    identity: Identity,
    random: SystemRandom,
}

/// A cluster's content at some time.
#[derive(Clone, Debug)]
pub struct Backup(State);

/// How a kubeconfig says who one is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// A client certificate.
    Certificate(Certificate),
    /// A bearer token.
    Token(String),
}

impl Cluster {
    /// A new cluster: its own CA, four namespaces, one ServiceCIDR; users `admin` and `nodelb` (may what
    /// `system:node-proxier` may) exist once they are asked for.
    ///
    /// # Errors
    /// No randomness.
    pub fn new() -> anyhow::Result<Self> {
        Self::with(Ranges::default())
    }

    /// The same with other service CIDRs or node ports.
    ///
    /// # Errors
    /// No randomness.
    pub fn with(ranges: Ranges) -> anyhow::Result<Self> {
        let random = SystemRandom::new();
        let mut seed = [0; 8];
        random.fill(&mut seed).ok().context("no randomness")?;
        let cidrs: Vec<String> = ranges.addresses.iter().map(ToString::to_string).collect();
        let state = State { pools: Pools::new(ranges), seed: u64::from_be_bytes(seed), ..State::default() };
        let shared = Shared {
            state: Mutex::new(state),
            access: Mutex::default(),
            changes: watch::Sender::new(0),
            identity: Identity::new()?,
            random,
        };
        let cluster = Self { shared: Arc::new(shared), writer: "kubectl-client-side-apply".into() };
        cluster.allow("nodelb", Role::node_proxier());
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            cluster.apply_value(json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}}))?;
        }
        cluster.apply_value(json!({
            "kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1",
            "metadata": {"name": "kubernetes"}, "spec": {"cidrs": cidrs},
        }))?;
        Ok(cluster)
    }

    /// Creates or replaces every object of a YAML or JSON stream, status included, and the namespaces they need.
    /// Server-set fields are kept, as is what was allocated.
    ///
    /// # Errors
    /// Not YAML, or what an apiserver refuses.
    pub fn apply(&self, yaml: &str) -> Result<(), Status> {
        let documents: Vec<Value> = match serde_json::from_str(yaml) {
            Ok(document) => vec![document],
            Err(_) => serde_saphyr::from_multiple(yaml)
                .map_err(|error| Status::new(400, format!("neither JSON nor YAML: {error}")))?,
        };
        for document in documents {
            match document["items"].as_array() {
                Some(items) => items.iter().try_for_each(|item| self.apply_value(item.clone()))?,
                None if document.is_null() => {}
                None => self.apply_value(document)?,
            }
        }
        Ok(())
    }

    /// Creates or replaces one object.
    ///
    /// # Errors
    /// What an apiserver refuses.
    pub fn apply_value(&self, object: Value) -> Result<(), Status> {
        let kind = object["kind"].as_str().unwrap_or_default();
        let resource = Resource::find(kind)
            .ok_or_else(|| Status::new(404, format!("no resource of kind {kind:?} is served here")))?;
        let part = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        let namespace = match (resource.namespaced, part("namespace")) {
            (false, _) => "",
            (true, "") => "default",
            (true, namespace) => namespace,
        };
        let key = (namespace.to_owned(), part("name").to_owned());
        self.write(resource, |state, write| {
            state.ensure_namespace(write, &key.0)?;
            match state.store.get(resource, &key) {
                Some(_) => state.update(write, &key, object),
                None => state.create(write, &key.0, object),
            }
        })?;
        if accounts::is_concerned(resource) { accounts::settle(self) } else { Ok(()) }
    }

    /// The same cluster, where everything written through this handle is written down as somebody else's doing:
    /// `kube-apiserver`'s, say.
    #[must_use]
    pub fn writing_as(&self, writer: &str) -> Self {
        Self { shared: self.shared.clone(), writer: writer.into() }
    }

    /// Patches an object, status included. `resource` is a plural or a kind; `namespace` is empty where there is none.
    ///
    /// # Errors
    /// What an apiserver refuses.
    pub fn patch(&self, resource: &str, namespace: &str, name: &str, patch: &Patch) -> Result<(), Status> {
        let key = (namespace.to_owned(), name.to_owned());
        self.write(find(resource)?, |state, write| state.patch(write, &key, patch))?;
        Ok(())
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// 404
    pub fn delete(&self, resource: &str, namespace: &str, name: &str) -> Result<(), Status> {
        let key = (namespace.to_owned(), name.to_owned());
        self.write(find(resource)?, |state, write| state.delete(write, &key, &Value::Null))?;
        Ok(())
    }

    /// An object as it is stored.
    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let resource = Resource::find(resource)?;
        let key = (namespace.to_owned(), name.to_owned());
        self.read(|state| state.store.get(resource, &key).map(|object| object.value.clone()))
    }

    /// All objects of a resource, by namespace and name.
    pub fn list(&self, resource: &str) -> Vec<Value> {
        let objects = Resource::find(resource).map(|resource| self.read(|state| state.store.objects(resource)));
        objects.iter().flat_map(|objects| objects.values().map(|object| object.value.clone())).collect()
    }

    /// The revision of the last write.
    pub fn revision(&self) -> u64 {
        self.read(|state| state.store.revision())
    }

    /// Takes so many revisions, as writes to resources that are not served here do.
    pub fn advance(&self, revisions: u64) {
        self.change(|state| (0..revisions).for_each(|_| state.store.tick()));
    }

    /// Forgets history: watches and continue tokens from before now get 410. Watches that run go on.
    pub fn compact(&self) {
        self.change(|state| state.store.compact());
    }

    /// Gives a resource (its plural or kind) an etcd of its own, as `--etcd-servers-overrides` does: its resourceVersions are
    /// so much greater than those of the others from now on.
    ///
    /// # Errors
    /// 404
    pub fn separate_versions(&self, resource: &str, offset: u64) -> Result<(), Status> {
        let resource = find(resource)?;
        self.change(|state| state.store.set_offset(resource, offset));
        Ok(())
    }

    /// What [`Self::restore_backup`] goes back to.
    pub fn backup(&self) -> Backup {
        self.read(|state| Backup(state.clone()))
    }

    /// Goes back to an earlier content and its revision, as after an etcd restore. Watches that run are told nothing.
    pub fn restore_backup(&self, backup: &Backup) {
        self.change(|state| state.restore(&backup.0));
    }

    /// Does something that no watch is ever told of; lists show it.
    pub fn quietly<T>(&self, change: impl FnOnce(&Self) -> T) -> T {
        self.change(|state| state.store.quiet = true);
        let result = change(self);
        self.change(|state| state.store.quiet = false);
        result
    }

    /// A token for a user, new and random. What the user may do is as [`Self::allow`] says.
    ///
    /// # Errors
    /// No randomness.
    pub fn token(&self, user: &str) -> anyhow::Result<String> {
        let mut bytes = [0; 16];
        self.shared.random.fill(&mut bytes).ok().context("no randomness")?;
        let token = bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        let known = User { name: user.into(), groups: vec!["system:authenticated".into()] };
        self.access(|access| access.tokens.insert(token.clone(), known));
        Ok(token)
    }

    /// From now on this token is nobody's: 401.
    pub fn revoke_token(&self, token: &str) {
        self.access(|access| access.tokens.remove(token));
    }

    /// A client certificate.
    ///
    /// # Errors
    /// No randomness.
    pub fn certificate(&self, user: &str, groups: &[&str]) -> anyhow::Result<Certificate> {
        self.shared.identity.client(user, groups)
    }

    /// From now on this is what a user may do, by certificate or by token.
    pub fn allow(&self, user: &str, role: Role) {
        self.access(|access| access.roles.insert(user.into(), role));
    }

    /// The CA's certificate.
    pub fn ca_pem(&self) -> &str {
        self.shared.identity.ca_pem()
    }

    /// The CA itself.
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.shared.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.shared.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.changes.send_modify(|count| *count += 1);
        result
    }

    /// Changes what watches do not need to know of.
    pub(crate) fn change_quietly<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.shared.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn access<T>(&self, access: impl FnOnce(&mut Access) -> T) -> T {
        access(&mut self.shared.access.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    fn write<T>(
        &self,
        resource: &'static Resource,
        change: impl FnOnce(&mut State, &Write<'_>) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let (writer, now) = (Writer::new(&*self.writer), rfc3339(SystemTime::now()));
        self.change(|state| change(state, &Write { resource, part: Part::Whole, writer: &writer, now: &now }))
    }
}

impl State {
    /// Creates a namespace that is not there.
    fn ensure_namespace(&mut self, write: &Write<'_>, name: &str) -> Result<(), Status> {
        let key: Key = (String::new(), name.to_owned());
        let Some(resource) = RESOURCES.iter().find(|it| it.kind == "Namespace") else { return Ok(()) };
        if name.is_empty() || self.store.get(resource, &key).is_some() {
            return Ok(());
        }
        let write = Write { resource, ..write.clone() };
        self.create(&write, "", json!({"metadata": {"name": name}})).map(drop)
    }
}

fn find(resource: &str) -> Result<&'static Resource, Status> {
    Resource::find(resource).ok_or_else(|| Status::new(404, format!("no resource {resource:?} is served here")))
}
