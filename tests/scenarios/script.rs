//! The format of a scenario: steps, then blocks that begin with `-- NAME --`. Reads and writes it
//! without knowledge of the steps.

use std::fmt;

/// A parsed scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    /// The lines before the first block: comments, blanks and steps.
    head: Vec<String>,
    /// The steps in `head`.
    pub(crate) steps: Vec<String>,
    pub(crate) blocks: Vec<Block>,
}

/// A file that a step uses, or the expected output of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    name: String,
    text: String,
}

const EXPECTED: &str = "expected-";

impl Block {
    /// Whether this is the expected output of a step.
    pub(crate) fn is_expected(&self) -> bool {
        self.name.starts_with(EXPECTED)
    }
}

impl Script {
    /// Parses a scenario.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut script = Self { head: Vec::new(), steps: Vec::new(), blocks: Vec::new() };
        for line in text.lines() {
            let heading = line.strip_prefix("-- ").and_then(|line| line.strip_suffix(" --"));
            if let Some(name) = heading {
                if script.blocks.iter().any(|block| block.name == name) {
                    return Err(format!("two blocks are named `{name}`; rename one"));
                }
                script.blocks.push(Block { name: name.into(), text: String::new() });
            } else if let Some(block) = script.blocks.last_mut() {
                block.text.push_str(line);
                block.text.push('\n');
            } else {
                script.head.push(line.into());
                let step = line.split_once('#').map_or(line, |(step, _comment)| step).trim();
                if !step.is_empty() {
                    script.steps.push(step.into());
                }
            }
        }
        Ok(script)
    }

    /// The content of the file block with this name.
    pub(crate) fn file(&self, name: &str) -> Result<&str, String> {
        let block = self.blocks.iter().find(|block| block.name == name && !block.is_expected());
        block.map(|block| block.text.as_str()).ok_or_else(|| format!("there is no block `-- {name} --`"))
    }

    /// Number of outputs so far.
    pub(crate) fn outputs(&self) -> usize {
        self.blocks.iter().filter(|block| block.is_expected()).count()
    }

    /// The expected output of the step that follows `before` other printing steps.
    pub(crate) fn expected(&self, before: usize, step: &str) -> String {
        let name = expected_name(before, step);
        self.blocks.iter().find(|block| block.name == name).map_or_else(String::new, |block| block.text.clone())
    }

    /// Records the output of a step.
    pub(crate) fn expect(&mut self, step: &str, text: String) {
        self.blocks.push(Block { name: expected_name(self.outputs(), step), text });
    }
}

fn expected_name(before: usize, step: &str) -> String {
    format!("{EXPECTED}{}: {step}", before + 1)
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.head {
            writeln!(f, "{line}")?;
        }
        for Block { name, text } in &self.blocks {
            write!(f, "-- {name} --\n{text}")?;
        }
        Ok(())
    }
}
