//! The goals, with the figures of this run.

use crate::chart::Chart;
use crate::rounds::verdict;

/// A goal: its number, what is compared, the limit, and the ratio by minimum and first quartile.
struct Goal {
    number: &'static str,
    what: String,
    limit: f64,
    figures: [f64; 2],
    /// The figure, by minimum, of programs that do only what no program at these hooks can do without.
    floor: Option<f64>,
}

/// The goals that have been measured, and the chart of the same figures.
#[derive(Default)]
pub(crate) struct Goals {
    goals: Vec<Goal>,
    pub(crate) chart: Chart,
}

impl Goals {
    pub(crate) fn add(&mut self, number: &'static str, what: &str, limit: f64, figures: [f64; 2]) {
        self.goals.push(Goal { number, what: what.to_lowercase(), limit, figures, floor: None });
    }

    /// As [`Goals::add`]; `floor` is the same ratio of programs that do less.
    pub(crate) fn add_with_floor(&mut self, goal: (&'static str, &str, f64), figures: [f64; 2], floor: [f64; 2]) {
        let (number, what, limit) = goal;
        self.add(number, what, limit, figures);
        self.goals.last_mut().unwrap().floor = Some(floor[0]);
    }

    pub(crate) fn print(mut self) {
        self.goals.sort_by_key(|goal| goal.number[1..].parse::<u32>().unwrap());
        println!("\n### Goals\n");
        println!(
            "Floor: programs that do nothing instead, or only store two entries for each new connection; at XDP, one that \
             makes the same calls of the kernel and decides and translates nothing (min).\n"
        );
        println!("| | | limit | min | p25 | within | floor |\n|---|---|---|---|---|---|---|");
        for Goal { number, what, limit, figures: [min, p25], floor } in &self.goals {
            let within = [verdict(*min, *limit), verdict(*p25, *limit)].join(", ");
            let floor = floor.map_or_else(String::new, |floor| format!("{floor:.2} "));
            println!("| {number} | {what} | {limit:.2} | {min:.2} | {p25:.2} | {within} | {floor}|");
        }
    }
}
