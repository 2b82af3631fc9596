//! What happens to one service, and what must follow for it. Two tests play such sequences: that of the pure parts
//! (`daemon/sources/src/dns/tests/interference.rs`), and that of the daemon with servers (`tests/interference/`).

use proptest::prelude::*;

/// The time of `dns.hold` that [`Step::Wait`] refers to, in milliseconds.
pub(crate) const HOLD: u64 = 300_000;

/// The service that everything happens to has a name of this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Address,
    /// SRV records with this number of targets.
    Srv(u8),
}

/// The number of targets that is enough for a server that is silent about all of them to seem silent about everything.
const MANY: u8 = 10;

impl Form {
    /// Whether the backends are those of many targets, which change one after another: nothing is expected of them.
    pub(crate) fn has_many(self) -> bool {
        self == Self::Srv(MANY)
    }
}

/// What the first server answers about the name. The second one knows no name at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    Usable(u8),
    /// The frontend of the other service.
    OwnFrontend,
    NoHost,
    Empty,
    NoSuchName,
    Error,
    /// Silence, while the other server responds.
    Silence,
    /// Silence of both servers.
    Nothing,
}

/// What happens to names.json between two runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Kept,
    Lost,
    /// As an earlier version wrote it.
    OfEarlierVersion,
    /// Without what it has about the service.
    Damaged,
    /// As it was some time before.
    Outdated,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Say(Says),
    Wait(u64),
    /// `is_rebooted`: the maps are empty.
    Restart {
        stored: Stored,
        is_rebooted: bool,
    },
    /// The file cannot be read any more, which a daemon that has read it ignores.
    Break,
    /// The file can be read again.
    Repair,
    /// The slice in Kubernetes has this many endpoints; `None`: it is removed.
    Endpoints(Option<u8>),
    /// A health check of the service's backend fails, or does not any more.
    Check(bool),
}

/// The backend that a service must have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// Its last usable backend; `None` if a hold has ended, or everything that is known of it is lost.
    pub(crate) backend: Option<String>,
    /// Whether names.json has it.
    pub(crate) is_stored: bool,
    /// Since when each answer was that the name does not exist, in milliseconds.
    pub(crate) gone_since: Option<u64>,
}

impl Expected {
    /// Notes what follows from an answer about the service's own name, or about that of its target. `hold` and `now` are
    /// in milliseconds.
    pub(crate) fn receive(&mut self, says: Says, (form, is_srv): (Form, bool), (hold, now): (u64, u64)) {
        if is_srv || form == Form::Address {
            self.gone_since = (says == Says::NoSuchName).then(|| self.gone_since.unwrap_or(now));
            if self.gone_since.is_some_and(|since| now - since >= hold) {
                self.backend = None;
            }
        }
        if let Says::Usable(host) = says
            && !is_srv
            && !form.has_many()
        {
            self.backend = Some(format!("192.0.2.{host}:8080"));
            self.is_stored = true;
        }
    }
}

/// A step that concerns one service only.
pub(crate) fn any_own_step() -> impl Strategy<Value = Step> {
    let says = prop_oneof![
        3 => (1_u8..8).prop_map(Says::Usable),
        2 => Just(Says::OwnFrontend),
        1 => Just(Says::NoHost),
        2 => Just(Says::Empty),
        2 => Just(Says::NoSuchName),
        1 => Just(Says::Error),
        2 => Just(Says::Silence),
        2 => Just(Says::Nothing),
    ];
    prop_oneof![
        5 => says.prop_map(Step::Say),
        1 => Just(Step::Break),
        1 => Just(Step::Repair),
        1 => prop::option::of(0_u8..3).prop_map(Step::Endpoints),
        1 => any::<bool>().prop_map(Step::Check),
    ]
}

/// A step that concerns the whole node.
pub(crate) fn any_node_step() -> impl Strategy<Value = Step> {
    let stored = prop_oneof![
        2 => Just(Stored::Kept),
        1 => Just(Stored::Lost),
        1 => Just(Stored::OfEarlierVersion),
        1 => Just(Stored::Damaged),
        2 => Just(Stored::Outdated),
    ];
    let restart = (stored, prop::bool::weighted(0.2));
    let restart = restart.prop_map(|(stored, is_rebooted)| Step::Restart { stored, is_rebooted });
    prop_oneof![prop_oneof![4 => 0_u64..20_000, 1 => Just(HOLD + 60_000)].prop_map(Step::Wait), restart,]
}

pub(crate) fn any_form() -> impl Strategy<Value = Form> {
    prop_oneof![2 => Just(Form::Address), 2 => Just(Form::Srv(1)), 1 => Just(Form::Srv(MANY))]
}
