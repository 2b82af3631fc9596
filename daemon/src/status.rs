//! Whether the process works, and whether the node's connections are translated: the facts, which the reconcile loop
//! publishes, and the checks that `/healthz`, `/readyz` and the health checks of load balancers are based on.

use std::net::SocketAddr;

use nodelb_core::model::moment::Moment;
pub use nodelb_report::check::Check;

/// The reconcile loop counts as stuck after this number of milliseconds without progress. An idle loop runs at least
/// once a second.
pub const STUCK_AFTER: u64 = 20_000;

/// The state of the loop and the datapath, as the loop reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Time of the loop's last iteration; before the first one, of its start.
    pub heartbeat: Moment,
    /// All conditions of readiness. Empty means that nothing has been checked yet: not ready.
    pub checks: Vec<Check>,
}

/// An address of `admin.listen` that cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unopened {
    pub address: SocketAddr,
    /// The reason, and what to do.
    pub why: String,
}

impl Unopened {
    /// The row of `/readyz`. Connections are translated all the same, so the check does not affect readiness.
    pub fn check(&self) -> Check {
        let Self { address, why } = self;
        Check::passed("listen", format!("{address} of admin.listen is not open: {why}; retrying"))
    }
}

impl Health {
    /// The health of a loop that works at this time, with nothing checked yet.
    pub fn unchecked(heartbeat: Moment) -> Self {
        Self { heartbeat, checks: Vec::new() }
    }

    /// Whether the reconcile loop is running.
    pub fn alive(&self, now: Moment) -> Check {
        let silent = now.0.saturating_sub(self.heartbeat.0);
        if silent > STUCK_AFTER {
            let seconds = silent / 1000;
            let detail = format!(
                "the reconcile loop has been stuck for {seconds} s: changes are not applied (traffic continues with \
                 the last known backends); see the journal, then restart nodelb"
            );
            return Check::failed("loop", detail);
        }
        Check::passed("loop", "reconcile loop running")
    }

    /// All conditions of readiness, the loop first.
    pub fn ready(&self, now: Moment) -> Vec<Check> {
        let mut checks = vec![self.alive(now)];
        if self.checks.is_empty() {
            checks.push(Check::failed("reconcile", "starting: the first full reconcile is not complete"));
        }
        checks.extend(self.checks.iter().cloned());
        checks
    }
}
