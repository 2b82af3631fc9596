//! Parses what nodelb uses of OpenMetrics text, as strictly as its specification (1.0.0) requires, and reports errors.

use std::collections::{BTreeMap, BTreeSet};

/// One parsed family.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) unit: Option<String>,
    pub(crate) help: Option<String>,
    pub(crate) samples: Vec<Sample>,
}

/// Names and values in their order.
pub(crate) type Labels = Vec<(String, String)>;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: Labels,
    pub(crate) value: f64,
}

/// Returns the families by name.
pub(crate) fn read(text: &str) -> Result<BTreeMap<String, Family>, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("does not end in `# EOF`")?;
    if !body.is_empty() && !body.ends_with('\n') {
        return Err("a line without an end".into());
    }
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current: Option<String> = None;
    for line in body.lines() {
        let at = |error: &str| format!("{error}: {line}");
        if let Some(rest) = line.strip_prefix("# ") {
            let (what, rest) = rest.split_once(' ').ok_or(at("no metadata"))?;
            let (name, value) = rest.split_once(' ').ok_or(at("no value"))?;
            if current.as_deref() != Some(name) {
                if families.contains_key(name) {
                    return Err(at("the family is there already"));
                }
                current = Some(name.to_owned());
                families.insert(name.to_owned(), Family::default());
            }
            let family = families.get_mut(name).ok_or(at("no family"))?;
            if !family.samples.is_empty() {
                return Err(at("metadata behind samples"));
            }
            family.describe(what, name, value).map_err(|error| at(&error))?;
        } else {
            let sample = sample(line).map_err(|error| at(&error))?;
            let name = current.as_ref().ok_or(at("a sample without a family"))?;
            let family = families.get_mut(name).ok_or(at("no family"))?;
            family.accept(name, sample).map_err(|error| at(&error))?;
        }
    }
    for (name, family) in &families {
        family.is_whole().map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(families)
}

impl Family {
    fn describe(&mut self, what: &str, name: &str, value: &str) -> Result<(), String> {
        match what {
            "HELP" if self.help.is_none() => self.help = Some(value.to_owned()),
            "TYPE" if self.kind.is_empty() => value.clone_into(&mut self.kind),
            "UNIT" if self.unit.is_none() => {
                if !name.ends_with(&format!("_{value}")) {
                    return Err("the name does not end in its unit".into());
                }
                self.unit = Some(value.to_owned());
            }
            _ => return Err("said twice, or not known".into()),
        }
        Ok(())
    }

    fn accept(&mut self, name: &str, sample: Sample) -> Result<(), String> {
        let suffix = sample.name.strip_prefix(name).ok_or("of another family")?;
        let allowed: &[&str] = match self.kind.as_str() {
            "gauge" => &[""],
            "counter" => &["_total", "_created"],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_sum", "_count", "_created"],
            kind => return Err(format!("unknown type {kind}")),
        };
        if !allowed.contains(&suffix) {
            return Err(format!("a {} has no {suffix}", self.kind));
        }
        if self.kind != "gauge" && !(sample.value.is_finite() && sample.value >= 0.0) {
            return Err("negative, or no number".into());
        }
        if self.kind == "info" && sample.value.to_bits() != 1_f64.to_bits() {
            return Err("an info that is not 1".into());
        }
        if self.samples.iter().any(|other| other.name == sample.name && other.labels == sample.labels) {
            return Err("the sample is there already".into());
        }
        self.samples.push(sample);
        Ok(())
    }

    /// Checks that are possible only at the end.
    fn is_whole(&self) -> Result<(), String> {
        if self.kind.is_empty() || self.help.as_deref().unwrap_or_default().is_empty() || self.samples.is_empty() {
            return Err("no type, help or sample".into());
        }
        if self.kind != "histogram" {
            return Ok(());
        }
        let mut last = 0.0;
        let mut bounds = Vec::new();
        for bucket in self.samples.iter().filter(|sample| sample.name.ends_with("_bucket")) {
            let bound = bucket.labels.iter().find(|(name, _)| name == "le").ok_or("a bucket without le")?;
            let bound: f64 = bound.1.parse().map_err(|error| format!("le={}: {error}", bound.1))?;
            if bounds.last().is_some_and(|before| *before >= bound) || bucket.value < last {
                return Err("buckets are out of order or not cumulative".into());
            }
            bounds.push(bound);
            last = bucket.value;
        }
        let count = self.samples.iter().find(|sample| sample.name.ends_with("_count")).ok_or("no count")?;
        if bounds.last() != Some(&f64::INFINITY) || count.value.to_bits() != last.to_bits() {
            return Err("the last bucket is not +Inf, or not the count".into());
        }
        Ok(())
    }
}

fn sample(line: &str) -> Result<Sample, String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    is_name(name)?;
    let mut labels = Vec::new();
    if let Some(behind) = rest.strip_prefix('{') {
        (labels, rest) = read_labels(behind)?;
    }
    let value = rest.strip_prefix(' ').ok_or("no space before the value")?;
    let value = value.parse().map_err(|error| format!("value {value:?}: {error}"))?;
    Ok(Sample { name: name.to_owned(), labels, value })
}

fn read_labels(mut rest: &str) -> Result<(Labels, &str), String> {
    let mut labels = Vec::new();
    let mut names = BTreeSet::new();
    loop {
        let (name, behind) = rest.split_once("=\"").ok_or("no label")?;
        is_name(name)?;
        if name.contains(':') || !names.insert(name) {
            return Err(format!("label {name}: a colon, or twice"));
        }
        let mut value = String::new();
        let mut chars = behind.char_indices();
        let end = loop {
            match chars.next().ok_or("a value without an end")? {
                (index, '"') => break index + 1,
                (_, '\\') => match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, c @ ('\\' | '"'))) => value.push(c),
                    other => return Err(format!("unknown escape {other:?}")),
                },
                (_, c) => value.push(c),
            }
        };
        labels.push((name.to_owned(), value));
        rest = &behind[end..];
        match rest.split_at_checked(1) {
            Some((",", behind)) => rest = behind,
            Some(("}", behind)) => return Ok((labels, behind)),
            _ => return Err("labels without an end".into()),
        }
    }
}

fn is_name(name: &str) -> Result<(), String> {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    let is_fine = name.starts_with(is_first) && name.chars().all(|c| is_first(c) || c.is_ascii_digit());
    if is_fine { Ok(()) } else { Err(format!("{name:?} is no name")) }
}
