//! Non-interference between objects, through the daemon with two DNS servers and an API server. The steps and what must
//! follow for the service that they concern are those of `daemon/sources/src/dns/tests/interference.rs`. One run of a daemon
//! plays many sequences: each has its own two services with names, and its own two services in Kubernetes. The steps that
//! concern the whole node are common to them.
//!
//! `INTERFERENCE_SEQUENCES=n` sets the number of sequences, and `INTERFERENCE_SEED=n` repeats a run.

mod node;
mod pair;
mod servers;
mod steps;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use node::Node;
use steps::{Form, HOLD, Says, Step, any_form, any_node_step, any_own_step};

/// The number of sequences of one run.
const SEQUENCES: usize = 100;
/// The number of sequences that may have a silent server. nodelb takes a server that is silent about eight names for
/// one that does not work, which concerns all names.
const SILENT: usize = 7;
/// The time for what must follow from an answer, generous for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The number of times that a run is played if the machine stands still meanwhile.
const ATTEMPTS: u32 = 5;

/// How daemons are started.
pub(crate) trait Place: Sync {
    /// The directory of the run.
    fn directory(&self, run: &str) -> PathBuf;
    /// The command without arguments.
    fn command(&self) -> Command;
    /// The sections `[datapath]` and `[packets]`.
    fn sections(&self) -> String;
    /// Whether the maps outlive the daemon.
    fn keeps_maps(&self) -> bool;
    /// Whether health checks reach nothing outside of the test.
    fn may_check(&self) -> bool;
    /// Empties the maps, while no daemon runs.
    fn reboot(&self, config: &Path);
}

/// The sequences of one run.
#[derive(Debug)]
struct Plan {
    forms: Vec<Form>,
    /// What happens one after another.
    moments: Vec<Moment>,
}

#[derive(Debug)]
enum Moment {
    /// A step of the whole node. If it is a restart: whether the daemon is killed.
    Node(Step, bool),
    /// The step of each sequence, and the pause after it in milliseconds.
    Own(Vec<Step>, u64),
}

impl Moment {
    /// Leaves every file valid.
    fn repair(&mut self) {
        let Self::Own(steps, _) = self else { return };
        let broken = steps.iter_mut().filter(|step| matches!(step, Step::Break));
        broken.for_each(|step| *step = Step::Repair);
    }
}

impl Plan {
    fn new(seed: u64) -> Self {
        let config = Config { rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new(config);
        let own = (prop::collection::vec(any_own_step(), SEQUENCES), 0_u64..400);
        let own = own.prop_map(|(steps, pause)| Moment::Own(quiet(steps), pause));
        let moment = prop_oneof![
            own,
            (any_node_step(), any::<bool>()).prop_map(|(step, is_killed)| Moment::Node(step, is_killed))
        ];
        let any = (prop::collection::vec(any_form(), SEQUENCES), prop::collection::vec(moment, 4..12));
        let tree = any.new_tree(&mut runner);
        let (forms, mut moments) = tree.expect("a plan").current();
        // While any file is broken, nothing is removed, because the file might have it.
        if !seed.is_multiple_of(3) {
            moments.iter_mut().for_each(Moment::repair);
        }
        Self { forms, moments }
    }

    /// The steps of one sequence.
    fn sequence(&self, number: usize) -> Vec<Step> {
        let step = |moment: &Moment| match moment {
            Moment::Node(step, _) => *step,
            Moment::Own(steps, _) => steps[number],
        };
        self.moments.iter().map(step).collect()
    }
}

/// The steps without silence in most of the sequences.
fn quiet(mut steps: Vec<Step>) -> Vec<Step> {
    for step in &mut steps[SILENT..] {
        if matches!(step, Step::Say(Says::Silence | Says::Nothing)) {
            *step = Step::Say(Says::Error);
        }
    }
    steps
}

/// Plays the sequences of one run. Returns what is wrong. A run shows nothing if the machine stood still meanwhile, because
/// a server may then seem to be silent about everything: it is repeated.
fn play(place: &dyn Place, run: u32, seed: u64) -> Result<(), String> {
    let mut played = Ok(());
    for attempt in 0..ATTEMPTS {
        let (result, has_stalled) = play_once(place, (run, attempt), seed);
        played = result;
        if played.is_ok() || !has_stalled {
            break;
        }
    }
    played
}

/// Plays the sequences once; also returns whether the machine stood still.
fn play_once(place: &dyn Place, run: (u32, u32), seed: u64) -> (Result<(), String>, bool) {
    let plan = Plan::new(seed);
    let mut node = Node::new(place, run, &plan.forms);
    let mut play = || {
        node.settle()?;
        for moment in &plan.moments {
            match moment {
                Moment::Own(steps, pause) => {
                    steps.iter().enumerate().for_each(|(number, step)| node.apply(number, *step));
                    thread::sleep(Duration::from_millis(*pause));
                    node.check()?;
                }
                Moment::Node(Step::Wait(millis), _) => node.wait(*millis > HOLD)?,
                Moment::Node(Step::Restart { stored, is_rebooted }, is_killed) => {
                    node.restart(*stored, *is_rebooted, *is_killed)?;
                }
                Moment::Node(..) => unreachable!("a step of one service"),
            }
        }
        node.settle()
    };
    let played = play();
    let played = played.map_err(|wrong| {
        let number = wrong.sequence;
        let steps: String = plan.sequence(number).iter().map(|step| format!("  {step:?}\n")).collect();
        let form = plan.forms[number];
        let (why, log) = (&wrong.why, fs::read_to_string(node.log()).unwrap_or_default());
        format!("INTERFERENCE_SEED={seed} INTERFERENCE_SEQUENCES=1: sequence {number}, {form:?}: {why}\n{steps}{log}")
    });
    let has_stalled = node.has_stalled();
    (played, has_stalled)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Plays this number of sequences, unless the environment sets another one, with this number of daemons at the same time.
pub(crate) fn play_all(place: &dyn Place, sequences: u32, daemons: u32) {
    let sequences = number("INTERFERENCE_SEQUENCES").map_or(sequences, |it| u32::try_from(it).unwrap_or(u32::MAX));
    let runs = sequences.div_ceil(u32::try_from(SEQUENCES).unwrap_or(1));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let seed = number("INTERFERENCE_SEED").unwrap_or(now * 1_000);
    let (next, start) = (AtomicU32::new(0), Instant::now());
    thread::scope(|scope| {
        for _ in 0..daemons.min(runs) {
            scope.spawn(|| {
                loop {
                    let run = next.fetch_add(1, Ordering::Relaxed);
                    if run >= runs {
                        return;
                    }
                    let played = play(place, run, seed + u64::from(run));
                    if played.is_err() {
                        next.store(runs, Ordering::Relaxed);
                    }
                    assert!(played.is_ok(), "{}", played.err().unwrap_or_default());
                }
            });
        }
    });
    let line = format!("{} sequences from seed {seed} in {:?}\n", runs as usize * SEQUENCES, start.elapsed());
    drop(std::io::stdout().write_all(line.as_bytes()));
}
