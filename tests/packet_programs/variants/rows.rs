//! Which combinations of values are loaded: every combination of the values of any few columns is in one row.

use std::collections::BTreeSet;

use super::columns::{COLUMNS, Column};

/// The number of columns that are combined: with three, a load that fails only if three options have certain
/// values is found. The environment variable `VARIANTS` changes it.
const STRENGTH: usize = 3;

/// A column, and a value of it.
type Choice = (usize, usize);

/// The rows, each with the index of a value for each column. The first row has the first value of each column.
pub(super) fn rows() -> Vec<Vec<usize>> {
    let strength = std::env::var("VARIANTS").map_or(STRENGTH, |text| text.parse().expect("VARIANTS is a number"));
    let mut missing = combinations(strength);
    let mut rows = Vec::new();
    let mut row = vec![0; COLUMNS.len()];
    loop {
        missing.retain(|combination| !contains(&row, combination));
        rows.push(row);
        let Some(first) = missing.first() else { return rows };
        row = completed(first, &missing);
    }
}

/// A row with these choices. Each other column has the value with which the row contains most missing combinations.
fn completed(choices: &[Choice], missing: &BTreeSet<Vec<Choice>>) -> Vec<usize> {
    let mut chosen: Vec<Option<usize>> = vec![None; COLUMNS.len()];
    choices.iter().for_each(|(column, value)| chosen[*column] = Some(*value));
    for at in 0..COLUMNS.len() {
        if chosen[at].is_some() {
            continue;
        }
        let gain = |value: &usize| {
            let fits = |(column, wanted): &Choice| match chosen[*column] {
                Some(value) => value == *wanted,
                None => *column != at || value == wanted,
            };
            missing.iter().filter(|them| them.contains(&(at, *value)) && them.iter().all(fits)).count()
        };
        // Of equals the first one, which does not end the packet path.
        chosen[at] = (0..COLUMNS[at].values.len()).rev().max_by_key(gain);
    }
    chosen.into_iter().map(|value| value.expect("each column has values")).collect()
}

/// Every combination of the values of at most this number of columns that has an effect.
fn combinations(strength: usize) -> BTreeSet<Vec<Choice>> {
    let mut all: Vec<Vec<Choice>> = vec![Vec::new()];
    for (column, Column { values, .. }) in COLUMNS.iter().enumerate() {
        let with = |before: &Vec<Choice>| {
            let before = before.clone();
            (0..values.len()).map(move |value| before.iter().copied().chain([(column, value)]).collect())
        };
        let longer: Vec<Vec<Choice>> = all.iter().filter(|before| before.len() < strength).flat_map(with).collect();
        all.extend(longer);
    }
    all.into_iter().filter(|combination| has_effect(combination)).collect()
}

/// Whether the row loads what the combination selects.
fn contains(row: &[usize], combination: &[Choice]) -> bool {
    let row: Vec<Choice> = row.iter().copied().enumerate().collect();
    let is_there = combination.iter().all(|choice| row.contains(choice));
    is_there && (!ends_packets(&row) || !is_of_packets(combination))
}

/// Whether the options of the packet path have an effect, if there are any.
fn has_effect(combination: &[Choice]) -> bool {
    !ends_packets(combination) || !is_of_packets(combination)
}

pub(super) fn ends_packets(choices: &[Choice]) -> bool {
    choices.iter().any(|(column, value)| COLUMNS[*column].values[*value].ends_packets)
}

fn is_of_packets(combination: &[Choice]) -> bool {
    combination.iter().any(|(column, _)| COLUMNS[*column].is_of_packets)
}
