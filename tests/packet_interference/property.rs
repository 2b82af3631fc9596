//! What every sequence must fulfil.

use nodelb_model::rule::Rule;

use crate::lab;
use crate::model::Model;
use crate::observed::compare;
use crate::sequence::{Step, play};

/// What differs for the honest parties when the strangers take part; empty if nothing does.
pub(crate) fn interference(steps: &[Step], removed: Option<Rule>) -> String {
    let world = lab::world();
    let run = |has_strangers: bool| {
        let mut model = Model::without(&world, removed);
        play(&mut model, world.clone(), steps, (has_strangers, None))
    };
    compare(&run(false), &run(true))
}

/// What each packet of the sequence becomes, as text.
pub(crate) fn trace(steps: &[Step], removed: Option<Rule>) -> String {
    let (world, mut lines) = (lab::world(), Vec::new());
    let mut model = Model::without(&world, removed);
    play(&mut model, world, steps, (true, Some(&mut lines)));
    lines.join("\n")
}
