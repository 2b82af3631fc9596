//! The events that the supervisor handles: results of its tasks, links that end, and reports of readers.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::model::moment::Moment;
use nodelb_host::messages;
use tracing::{info, warn};

use super::state::{Current, Supervisor};
use super::tasks::{Done, Task};
use crate::apiserver::address::{Address, Host, Server, reason_not_to_learn};
use crate::apiserver::connection::error::LinkError;
use crate::apiserver::credentials::login::{CredentialsError, Login};
use crate::apiserver::endpoints::pool::{Origin, Outcome, Pool};
use crate::apiserver::endpoints::preflight::{self, Opened, outcome_of, outcome_of_probe};
use crate::apiserver::endpoints::state_file::EndpointsState;
use crate::apiserver::session::{Report, Session};

/// The number of consecutive requests that a server may fail to answer before another server is considered.
const MOST_COMPLAINTS: u32 = 3;

/// The maximum number of listed but unusable addresses that are logged.
const MOST_LEFT_OUT: usize = 64;

impl Supervisor {
    pub(super) fn done(&mut self, done: Done) {
        let now = self.clock.now();
        match done {
            Done::Opened(address, result, resolved) => {
                match *result {
                    Ok((opened, why)) => self.opened(now, &address, opened, &why),
                    Err(error) => {
                        let error = self.explained(error, &address, &resolved);
                        self.not_opened(now, &address, &error);
                    }
                }
                self.resolved_to(&address, resolved);
            }
            Done::Probed(address, result, resolved) => {
                let result = result.map_err(|error| self.explained(error, &address, &resolved));
                self.probed(now, &address, &result);
                self.resolved_to(&address, resolved);
            }
            Done::Login { login, trouble, stored, unread } => {
                self.saver.unread = self.saver.unread.take().or(unread);
                if let Some(login) = self.login(now, login, stored) {
                    self.renew(now, &login, trouble);
                }
            }
            Done::Verified(session, login, result) => self.verified(now, session, &login, result),
        }
    }

    /// Handles the end of the link. The pool opens the address again immediately, and the result decides its state.
    pub(super) fn ended(&mut self, error: &LinkError) {
        let now = self.clock.now();
        if let Some(address) = self.pool.in_use().cloned() {
            self.journal.failed(now, &address, &error.to_string());
        }
        self.close(now, &error.to_string());
    }

    fn opened(&mut self, now: Moment, address: &Address, opened: Opened, why: &str) {
        let Some(candidate) = self.pool.find(address) else { return };
        let (server, origin) = (candidate.server.clone(), candidate.origin);
        if let Err(error) = self.identify(now, origin, opened.cluster.as_deref()) {
            self.journal.failed(now, address, &error);
            self.pool.note(now, address, Outcome::Another(error));
            return;
        }
        self.tasks.give_up(|task| matches!(task, Task::Open(_)));
        self.pool.opened(now, address);
        self.journal.opened(now, address, why);
        self.sessions += 1;
        self.last_response = Some(now);
        self.renewed();
        let Opened { link, login, revision, asked, .. } = opened;
        let session = Arc::new(Session { link, revision, asked, number: self.sessions });
        self.session_in.send_replace(Some(Arc::clone(&session)));
        let current = Current { session, server, login, complaints: 0, objections: (0, now), unauthorized: None };
        if let Some(before) = self.current.replace(current) {
            before.session.link.cut();
        }
    }

    /// Checks that the server belongs to the expected cluster, and records the cluster's uid.
    fn identify(&mut self, now: Moment, origin: Origin, found: Option<&str>) -> Result<(), String> {
        let Some(found) = found else { return Ok(()) };
        match self.saver.cluster.as_deref() {
            Some(known) if known == found => return Ok(()),
            // Addresses that were learned before the first session of this run come from the previous state, too.
            Some(known) if origin == Origin::Remembered || origin == Origin::Learned && self.sessions == 0 => {
                return Err(format!(
                    "another cluster answers there: its Service default/kubernetes has the uid {found}, the remembered \
                     one {known}; not used"
                ));
            }
            Some(_) if origin == Origin::Configured && self.sessions == 0 => self.pool.demote_learned(),
            _ => {}
        }
        self.cluster_is(now, found);
        Ok(())
    }

    /// Records the uid that a trusted server presented. Addresses that were refused because of this uid are tried
    /// again.
    fn cluster_is(&mut self, now: Moment, found: &str) {
        let Some(known) = self.saver.cluster.replace(found.to_owned()) else { return };
        if known != found {
            info!(
                message_id = %messages::CLUSTER_CHANGED,
                "the uid of Service default/kubernetes changed from {known} to {found}: remembered addresses are \
                 verified against the new one before use"
            );
            self.pool.retry_refused(now);
        }
    }

    fn resolved_to(&mut self, address: &Address, resolved: Vec<SocketAddr>) {
        if matches!(address.host, Host::Name(_)) && !resolved.is_empty() {
            self.resolved.insert(address.clone(), resolved);
        }
    }

    /// Adds to the error that the address is a service's, if it is: other programs may be able to connect to it.
    fn explained(&self, error: LinkError, address: &Address, resolved: &[SocketAddr]) -> LinkError {
        let LinkError::Unreachable(text) = error else { return error };
        let is_in_cidr = |at: &SocketAddr| self.cidrs.iter().any(|net| net.contains(&at.ip()));
        let mut tried = address.socket().into_iter().chain(resolved.iter().copied());
        let service = tried.find(|at| is_in_cidr(at) || (self.is_frontend)(*at));
        LinkError::Unreachable(match service {
            Some(at) => format!(
                "{text}; {at} is a service address, and nodelb never translates its own connections: use an address the \
                 apiserver itself listens on"
            ),
            None => text,
        })
    }

    fn not_opened(&mut self, now: Moment, address: &Address, error: &LinkError) {
        if self.pool.in_use() == Some(address) {
            // The new credentials do not work, but the session with the old ones still does.
            self.pool.not_reopened(address);
            self.not_renewed(now, address, error);
        } else {
            self.journal.failed(now, address, &error.to_string());
            self.pool.note(now, address, outcome_of(error, &self.timeouts));
        }
    }

    fn probed(&mut self, now: Moment, address: &Address, result: &Result<(), LinkError>) {
        let outcome = match result {
            Ok(()) => Outcome::Worked,
            Err(error) => outcome_of_probe(error, &self.timeouts),
        };
        match result {
            Ok(()) => self.journal.works(address),
            Err(LinkError::Unauthorized(_)) => {
                let used = self.current.as_ref().map(|current| &current.login);
                if let Some(login) = used.or(self.login.as_ref()) {
                    self.credentials.reject(login);
                    self.look_at = now;
                }
            }
            Err(_) => {}
        }
        self.pool.probed(now, address, outcome);
        if let (Err(error), Some(candidate)) = (result, self.pool.find(address))
            && candidate.error.as_ref().is_some_and(|(at, _)| *at == now)
        {
            self.journal.failed(now, address, &error.to_string());
        }
    }

    /// Handles the result of reading the credentials. Returns the login, if there is one.
    fn login(
        &mut self,
        now: Moment,
        result: Result<Arc<Login>, CredentialsError>,
        stored: Option<EndpointsState>,
    ) -> Option<Arc<Login>> {
        let login = match result {
            Ok(login) => login,
            Err(error) => {
                self.problem = Some(error.to_string());
                self.journal.credentials(self.problem.clone());
                return None;
            }
        };
        self.problem = None;
        self.journal.credentials(None);
        let before = self.login.replace(Arc::clone(&login));
        match before {
            None => self.first_login(now, &login, stored),
            Some(before) if !Arc::ptr_eq(&before, &login) => {
                info!(
                    message_id = %messages::LOGIN_CHANGED,
                    "the credentials for the apiservers have changed: {}", login.identity
                );
                self.pool.retry_refused(now);
            }
            Some(_) => {}
        }
        if let Some(server) = self.credentials.server()
            && self.pool.configure(server.clone(), now)
        {
            let address = &server.address;
            info!(
                message_id = %messages::APISERVER_KNOWN,
                apiserver = %address, "the kubeconfig has another server: added {address}"
            );
        }
        Some(login)
    }

    /// Adds the server in the kubeconfig and, if they belong to this cluster, the remembered addresses to the pool.
    fn first_login(&mut self, now: Moment, login: &Login, stored: Option<EndpointsState>) {
        let configured: Vec<_> = self.settings.servers.iter().cloned().chain(self.credentials.server()).collect();
        self.pool = Pool::new(&configured, self.timeouts, self.seed, now);
        let remembered = stored.map(|stored| self.saver.loaded(stored, &login.authority));
        self.pool.remember(remembered.into_iter().flatten(), now);
        // What the maps have may be newer than what could be stored.
        let usable = std::mem::take(&mut self.in_maps).into_iter().filter(|at| self.refusal(*at).is_none());
        let usable: Vec<SocketAddr> = usable.collect();
        self.pool.remember_backends(usable, now);
    }

    /// Adds the remembered addresses to the pool that the disk has late.
    pub(super) fn remember(&mut self, stored: Option<EndpointsState>) {
        let (Some(stored), Some(login)) = (stored, &self.login) else { return };
        let remembered = self.saver.loaded(stored, &login.authority);
        self.pool.remember(remembered, self.clock.now());
    }

    /// Switches the session in use to a new login. A new token is used on the existing link. A new certificate needs a
    /// new connection to the same address, which replaces the old one when it is open. Without a new login, `trouble`
    /// is the reason why the current credentials give none.
    fn renew(&mut self, now: Moment, login: &Arc<Login>, trouble: Option<String>) {
        let Some(current) = &mut self.current else { return };
        if Arc::ptr_eq(&current.login, login) {
            let unauthorized = current.unauthorized.take();
            match trouble {
                Some(why) => self.keeps_previous(
                    now,
                    format!(
                        "the current credentials cannot be used, and a start would have none; the connection in use \
                         keeps the previous ones: {why}"
                    ),
                ),
                None => self.renewed(),
            }
            if let Some(error) = unauthorized {
                // This counts as one failed request, which its reader repeats. Probes determine whether the login is
                // rejected permanently.
                self.complain(now, &error);
            }
            return;
        }
        current.unauthorized = None;
        let server = current.server.clone();
        if Arc::ptr_eq(&current.login.tls, &login.tls) {
            self.verify(server, login);
        } else if !self.tasks.is_out(&Task::Open(server.address.clone())) {
            self.open(now, server, "the credentials have changed".into());
        }
    }

    /// Checks over a separate connection whether the server accepts a new token, because the session in use works.
    fn verify(&mut self, server: Server, login: &Arc<Login>) {
        if self.tasks.is_out(&Task::Verify) {
            return;
        }
        let Some(current) = &self.current else { return };
        let (session, at) = (current.session.number, current.session.link.at());
        let attempt = self.attempt(server, login).pinned(at);
        let (timeout, login) = (Duration::from_millis(self.timeouts.probe_timeout), Arc::clone(login));
        self.tasks.send(Task::Verify, async move {
            let (answer, _) = preflight::probe(attempt, timeout).await;
            Done::Verified(session, login, answer.map(drop))
        });
    }

    /// Handles the result of that check, unless another session has replaced the checked one. A rejected token is
    /// checked again whenever the credentials are checked; an exec plugin has to print a new one.
    fn verified(&mut self, now: Moment, session: u64, login: &Arc<Login>, result: Result<(), LinkError>) {
        let Some(current) = self.current.as_mut().filter(|current| current.session.number == session) else { return };
        match result {
            Err(LinkError::Unauthorized(why)) => {
                self.credentials.reject(login);
                let address = current.server.address.clone();
                self.not_renewed(now, &address, &why);
            }
            Err(_) => {}
            Ok(()) => {
                if current.session.link.renew(login) {
                    current.login = Arc::clone(login);
                    self.renewed();
                }
            }
        }
    }

    /// Reports that the session in use keeps the previous credentials. A reconnect would be refused, too.
    fn not_renewed(&mut self, now: Moment, address: &Address, error: &impl Display) {
        let reported =
            format!("the new credentials do not work, and the connection in use keeps the previous ones: {error}");
        self.journal.not_renewed(address, &reported);
        self.keeps_previous(now, reported);
    }

    fn keeps_previous(&mut self, now: Moment, why: String) {
        let since = self.not_renewed.as_ref().map_or(now, |(since, _)| *since);
        self.not_renewed = Some((since, why));
    }

    /// Records that the session in use has the current credentials, or that there is none.
    pub(super) fn renewed(&mut self) {
        self.not_renewed = None;
        self.journal.renewed();
    }

    pub(super) fn report(&mut self, report: Report) {
        let now = self.clock.now();
        let is_current =
            |this: &Self, number| this.current.as_ref().is_some_and(|current| current.session.number == number);
        match report {
            Report::Progress { session } if is_current(self, session) => {
                self.last_response = Some(now);
                if let Some(current) = &mut self.current {
                    current.complaints = 0;
                }
            }
            Report::Failed { session, error } if is_current(self, session) => self.failed(now, error),
            Report::Progress { .. } | Report::Failed { .. } => {}
            Report::Cluster(uid) if self.current.is_some() && !uid.is_empty() => self.cluster_is(now, &uid),
            Report::Cluster(_) => {}
            Report::Endpoints(listed) => {
                self.learn(now, &listed);
                if !listed.is_empty() {
                    self.listed = listed;
                }
            }
            Report::ServiceCidrs(cidrs) => {
                self.cidrs = self.settings.service_cidrs.iter().copied().chain(cidrs).collect();
                self.revalidate(now);
            }
        }
    }

    /// Handles a failed request of a reader over the session in use.
    fn failed(&mut self, now: Moment, error: LinkError) {
        let Some(current) = &mut self.current else { return };
        let address = current.server.address.clone();
        match &error {
            LinkError::Unreachable(_) | LinkError::Broken(_) | LinkError::TimedOut(_) | LinkError::Certificate(_) => {
                self.pool.doubt(now);
            }
            LinkError::Busy { code: 500.., .. } | LinkError::Unproven(_) => self.complain(now, &error),
            LinkError::Unauthorized(_) => {
                self.credentials.reject(&current.login);
                current.unauthorized = Some(error);
                self.look_at = now;
            }
            LinkError::Forbidden(_) => self.denied(now, &address, &error),
            LinkError::Status { .. } => {
                let (count, last) = &mut current.objections;
                *count = if now < last.plus(self.timeouts.min_uptime) { *count + 1 } else { 1 };
                *last = now;
                if *count >= MOST_COMPLAINTS {
                    *count = 0;
                    self.denied(now, &address, &error);
                }
            }
            LinkError::Busy { .. } | LinkError::Gone(_) => {}
        }
    }

    /// Counts a request that failed because of the server; single failures have no consequence.
    fn complain(&mut self, now: Moment, error: &LinkError) {
        let Some(current) = &mut self.current else { return };
        current.complaints += 1;
        if current.complaints >= MOST_COMPLAINTS {
            current.complaints = 0;
            let address = current.server.address.clone();
            let reported = format!("{MOST_COMPLAINTS} requests in a row failed, the last one with {error}");
            self.journal.failed(now, &address, &reported);
            self.pool.fail_session(now, reported);
        }
    }

    /// Handles a missing permission of a reader.
    fn denied(&mut self, now: Moment, address: &Address, error: &LinkError) {
        self.journal.failed(now, address, &error.to_string());
        self.pool.denied(now, error.to_string());
    }

    /// Adds the listed addresses to the pool. Logs each unusable address once.
    fn learn(&mut self, now: Moment, listed: &BTreeSet<SocketAddr>) {
        let mut usable = BTreeSet::new();
        if !listed.is_empty() {
            self.excluded.clear();
        }
        for &at in listed {
            let refusal = self.refusal(at).filter(|_| self.pool.find(&at.into()).is_none());
            match refusal {
                None => drop(usable.insert(at)),
                Some(why) => {
                    self.exclude(at);
                    self.leave_out(at, why);
                }
            }
        }
        for at in self.pool.learn(&usable, now) {
            self.leave_out(at, "the cluster lists too many");
        }
    }

    fn leave_out(&mut self, at: SocketAddr, why: &str) {
        if self.left_out.len() < MOST_LEFT_OUT && self.left_out.insert(at) {
            warn!(
                message_id = %messages::APISERVER_EXCLUDED,
                "{at} from the endpoints of default/kubernetes is not used as an apiserver: {why}"
            );
        }
    }

    fn exclude(&mut self, at: SocketAddr) {
        if self.excluded.len() < MOST_LEFT_OUT {
            self.excluded.insert(at);
        }
    }

    /// Forgets addresses that must not be used any more, unless they have ever worked, and adds listed addresses that
    /// may be used now.
    pub(super) fn revalidate(&mut self, now: Moment) {
        let (cidrs, is_frontend) = (&self.cidrs, &self.is_frontend);
        let refused = self.pool.forget_refused(|at| reason_not_to_learn(at, cidrs, &**is_frontend).is_some());
        for address in refused {
            warn!(
                message_id = %messages::APISERVER_EXCLUDED,
                apiserver = %address,
                "apiserver {address} is not used: it is a service address and has not worked as an apiserver"
            );
            if let Some(at) = address.socket().filter(|at| self.listed.contains(at)) {
                self.exclude(at);
            }
        }
        if let Some(at) = self.excluded.iter().copied().find(|at| self.refusal(*at).is_none()) {
            info!(
                message_id = %messages::APISERVER_KNOWN,
                "{at} from the endpoints of default/kubernetes is no longer a service address"
            );
            let listed = std::mem::take(&mut self.listed);
            self.learn(now, &listed);
            self.listed = listed;
        }
    }
}
