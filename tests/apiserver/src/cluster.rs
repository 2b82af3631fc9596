//! A cluster: the state that all its apiservers share, and the operations that tests change it directly with.

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

/// A cluster. Clones refer to the same cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    shared: Arc<Shared>,
    /// The field manager of all writes through this handle.
    writer: Arc<str>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    access: Mutex<Access>,
    /// Incremented by each change; watches wait for it.
    changes: watch::Sender<u64>,
    identity: Identity,
    random: SystemRandom,
}

/// A copy of a cluster's content.
#[derive(Clone, Debug)]
pub struct Backup(State);

/// The credentials in a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// A client certificate.
    Certificate(Certificate),
    /// A bearer token.
    Token(String),
}

impl Cluster {
    /// Creates a cluster with its own CA, four namespaces and one ServiceCIDR. The users `admin`
    /// and `nodelb` (with the permissions of `system:node-proxier`) are created on first use.
    ///
    /// # Errors
    /// The random number generator failed.
    pub fn new() -> anyhow::Result<Self> {
        Self::with(Ranges::default())
    }

    /// Creates a cluster with other service CIDRs or node ports.
    ///
    /// # Errors
    /// The random number generator failed.
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

    /// Creates or replaces every object of a YAML or JSON stream, status included, and creates
    /// their namespaces. Fields set by the server and allocated values are kept.
    ///
    /// # Errors
    /// The text is not YAML, or an apiserver would reject an object.
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
    /// An apiserver would reject it.
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
        if accounts::is_relevant(resource) { accounts::settle(self) } else { Ok(()) }
    }

    /// Returns a handle on the same cluster whose writes are recorded under another field manager,
    /// for example `kube-apiserver`.
    #[must_use]
    pub fn writing_as(&self, writer: &str) -> Self {
        Self { shared: self.shared.clone(), writer: writer.into() }
    }

    /// Patches an object, status included. `resource` is a plural or a kind; `namespace` is empty
    /// for cluster-scoped resources.
    ///
    /// # Errors
    /// An apiserver would reject the patch.
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

    /// Returns an object as it is stored.
    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let resource = Resource::find(resource)?;
        let key = (namespace.to_owned(), name.to_owned());
        self.read(|state| state.store.get(resource, &key).map(|object| object.value.clone()))
    }

    /// Returns all objects of a resource, ordered by namespace and name.
    pub fn list(&self, resource: &str) -> Vec<Value> {
        let objects = Resource::find(resource).map(|resource| self.read(|state| state.store.objects(resource)));
        objects.iter().flat_map(|objects| objects.values().map(|object| object.value.clone())).collect()
    }

    /// The revision of the last write.
    pub fn revision(&self) -> u64 {
        self.read(|state| state.store.revision())
    }

    /// Advances the revision by this number, as writes to resources that this server does not have
    /// would.
    pub fn advance(&self, revisions: u64) {
        self.change(|state| (0..revisions).for_each(|_| state.store.tick()));
    }

    /// Compacts the history: watches and continue tokens of earlier revisions get 410 from now on.
    /// Running watches continue.
    pub fn compact(&self) {
        self.change(|state| state.store.compact());
    }

    /// Gives a resource (plural or kind) its own etcd, as `--etcd-servers-overrides` does: from now
    /// on its resourceVersions are greater than those of the others by `offset`.
    ///
    /// # Errors
    /// 404
    pub fn separate_versions(&self, resource: &str, offset: u64) -> Result<(), Status> {
        let resource = find(resource)?;
        self.change(|state| state.store.set_offset(resource, offset));
        Ok(())
    }

    /// Takes a backup for [`Self::restore_backup`].
    pub fn backup(&self) -> Backup {
        self.read(|state| Backup(state.clone()))
    }

    /// Restores the content and revision of a backup, as after an etcd restore. Running watches are
    /// not notified.
    pub fn restore_backup(&self, backup: &Backup) {
        self.change(|state| state.restore(&backup.0));
    }

    /// Makes a change that no watch ever reports; lists show it.
    pub fn without_events<T>(&self, change: impl FnOnce(&Self) -> T) -> T {
        self.change(|state| state.store.quiet = true);
        let result = change(self);
        self.change(|state| state.store.quiet = false);
        result
    }

    /// Creates a random token for a user. [`Self::allow`] sets the permissions of the user.
    ///
    /// # Errors
    /// The random number generator failed.
    pub fn token(&self, user: &str) -> anyhow::Result<String> {
        let mut bytes = [0; 16];
        self.shared.random.fill(&mut bytes).ok().context("no randomness")?;
        let token = bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        let known = User { name: user.into(), groups: vec!["system:authenticated".into()] };
        self.access(|access| access.tokens.insert(token.clone(), known));
        Ok(token)
    }

    /// Makes a token invalid: requests with it get 401.
    pub fn revoke_token(&self, token: &str) {
        self.access(|access| access.tokens.remove(token));
    }

    /// Issues a client certificate.
    ///
    /// # Errors
    /// The random number generator failed.
    pub fn certificate(&self, user: &str, groups: &[&str]) -> anyhow::Result<Certificate> {
        self.shared.identity.client(user, groups)
    }

    /// Sets the permissions of a user, for certificates and tokens alike.
    pub fn allow(&self, user: &str, role: Role) {
        self.access(|access| access.roles.insert(user.into(), role));
    }

    /// The CA certificate, in PEM.
    pub fn ca_pem(&self) -> &str {
        self.shared.identity.ca_pem()
    }

    /// The CA.
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

    /// Makes a change without waking up the watches.
    pub(crate) fn change_without_events<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
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
    /// Creates a namespace unless it exists.
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
