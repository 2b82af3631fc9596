//! What every sequence must fulfil.

use std::panic::catch_unwind;

use nodelb_programs::programs::Rule;

use crate::honest::{Act, COUNT, User};
use crate::lab;
use crate::observed::compare;
use crate::on_host::OnHost;
use crate::sequence::{Step, play};
use crate::socket::Event;
use crate::tag::Kind;

/// What differs for the honest parties when the strangers take part; empty if nothing does.
pub(crate) fn interference(steps: &[Step], removed: Option<Rule>) -> String {
    let world = lab::world();
    let run = |has_strangers: bool| {
        let mut programs = OnHost::without(&world, removed);
        play(&mut programs, world.clone(), steps, (has_strangers, None))
    };
    compare(&run(false), &run(true))
}

/// The clients that ask and get no answer, without strangers; empty if there are none. If a backend gets the answer of
/// another one, the two may answer each other for ever, and playing the sequence fails.
pub(crate) fn unanswered(steps: &[Step], removed: Option<Rule>) -> String {
    let world = lab::world();
    let played = catch_unwind(|| play(&mut OnHost::without(&world, removed), world.clone(), steps, (false, None)));
    let observed = match played {
        Ok(observed) => observed,
        Err(panic) => return format!("failed: {:?}", panic.downcast_ref::<String>()),
    };
    let asked = steps.iter().filter_map(|step| match step {
        Step::Do(user, Act::Ask) => Some(*user % COUNT),
        _ => None,
    });
    let is_answered = |user: &u8| {
        let events = observed.clients[usize::from(*user)].iter();
        events.map(|(_, event)| event).any(|event| matches!(event, Event::Got(_, Kind::Answer, _)))
    };
    let without = asked.filter(|user| !is_answered(user)).map(User::of);
    let has_backends = |user: &User| user.is_unserved() || user.numbers.1 != 0;
    without.filter(has_backends).map(|user| format!("{} gets no answer\n", user.client)).collect()
}

/// What each packet of the sequence becomes, as text.
pub(crate) fn trace(steps: &[Step], removed: Option<Rule>) -> String {
    let (world, mut lines) = (lab::world(), Vec::new());
    let mut programs = OnHost::without(&world, removed);
    play(&mut programs, world, steps, (true, Some(&mut lines)));
    lines.join("\n")
}
