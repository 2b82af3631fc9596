//! The goals, with the figures of this run.

use crate::chart::Chart;
use crate::rounds::verdict;

/// A goal: its number, what is compared, the limit, and the ratio by minimum and first quartile.
struct Goal {
    number: &'static str,
    what: String,
    limit: f64,
    figures: [f64; 2],
}

/// The goals that have been measured, and the chart of the same figures.
#[derive(Default)]
pub(crate) struct Goals {
    goals: Vec<Goal>,
    pub(crate) chart: Chart,
}

impl Goals {
    pub(crate) fn add(&mut self, number: &'static str, what: &str, limit: f64, figures: [f64; 2]) {
        self.goals.push(Goal { number, what: what.to_lowercase(), limit, figures });
    }

    pub(crate) fn print(mut self) {
        self.goals.sort_by_key(|goal| goal.number[1..].parse::<u32>().unwrap());
        println!("\n### Goals\n");
        println!("| | | limit | min | p25 | within |\n|---|---|---|---|---|---|");
        for Goal { number, what, limit, figures: [min, p25] } in &self.goals {
            let within = [verdict(*min, *limit), verdict(*p25, *limit)];
            println!("| {number} | {what} | {limit:.2} | {min:.2} | {p25:.2} | {}, {} |", within[0], within[1]);
        }
    }
}
