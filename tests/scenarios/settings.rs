//! The settings at the start of a scenario: limits, restrictions, the source, and the packet path.

use nodelb_core::compile::guard::Guard;
use nodelb_core::config::PacketsConfig;
use nodelb_core::datapath::Limits;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::service::Source;

use crate::model::{Host, Maps, ROOMY};
use crate::script::Script;

/// See the module.
pub(crate) struct Settings {
    pub(crate) guard: Guard,
    pub(crate) limits: Limits,
    /// The source of what is applied.
    pub(crate) source: Source,
    /// The packet path; off unless the scenario has a step `packets`.
    pub(crate) packets: PacketsConfig,
    /// Whether backends on this node see an address of the node, too.
    pub(crate) always_masquerades: bool,
}

impl Settings {
    pub(crate) fn of(script: &Script) -> Result<Self, String> {
        let mut settings = Self {
            guard: Guard::default(),
            limits: ROOMY,
            source: Source::Files,
            packets: PacketsConfig::default(),
            always_masquerades: false,
        };
        for step in &script.steps {
            let words: Vec<&str> = step.split_whitespace().collect();
            let set = match words[..] {
                ["source", source] => settings.set_source(source),
                ["limits", ref limits @ ..] => settings.set_limits(limits),
                ["guard", ref rules @ ..] => settings.set_guard(rules),
                ["packets", ref rules @ ..] => settings.set_packets(rules),
                _ => Ok(()),
            };
            set.map_err(|error| format!("`{step}`: {error}"))?;
        }
        Ok(settings)
    }

    fn set_source(&mut self, source: &str) -> Result<(), String> {
        self.source = match source {
            "files" => Source::Files,
            "kubernetes" => Source::Kubernetes,
            _ => return Err("a source is `files` or `kubernetes`".into()),
        };
        Ok(())
    }

    fn set_limits(&mut self, words: &[&str]) -> Result<(), String> {
        for (key, value) in pairs(words)? {
            let value = value.parse().map_err(|error| format!("{key}: {error}"))?;
            match key {
                "frontends" => self.limits.frontends = value,
                "services" => self.limits.services = value,
                "slots" => self.limits.slots = value,
                _ => return Err(format!("no map `{key}`: frontends, services and slots are")),
            }
        }
        Ok(())
    }

    fn set_guard(&mut self, words: &[&str]) -> Result<(), String> {
        for (key, value) in pairs(words)? {
            match key {
                "admin" => self.guard.admin = list::<L4Addr>(value)?.iter().map(|at| (at.addr, at.port)).collect(),
                "bypass" => self.guard.bypass = list(value)?,
                "external-ips" => self.guard.external_ips = list(value)?,
                "own-addresses" => self.guard.own_addresses = list(value)?,
                _ => return Err(format!("no rule `{key}`: admin, bypass, external-ips and own-addresses are")),
            }
        }
        Ok(())
    }

    fn set_packets(&mut self, words: &[&str]) -> Result<(), String> {
        self.packets = PacketsConfig { is_on: true, cluster_ips: false, is_consistent: true, direct_return: true };
        for word in words {
            match *word {
                "cluster-ips" => self.packets.cluster_ips = true,
                "snat-always" => self.always_masquerades = true,
                _ => return Err(format!("no setting `{word}`: cluster-ips and snat-always are")),
            }
        }
        Ok(())
    }

    /// A host with these settings and these empty maps.
    pub(crate) fn host<M: Maps>(&self, maps: M) -> Host<M> {
        let mut host = Host::new(maps, [self.source], self.guard.clone());
        host.packets = self.packets;
        host.restart();
        host
    }
}

/// The words `key=value`.
pub(crate) fn pairs<'a>(words: &[&'a str]) -> Result<Vec<(&'a str, &'a str)>, String> {
    words.iter().map(|word| word.split_once('=').ok_or_else(|| format!("`{word}` is not key=value"))).collect()
}

/// The parts of a text with commas.
pub(crate) fn list<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<Vec<T>, String> {
    let parse = |part: &str| part.parse().map_err(|error| format!("`{part}`: {error}"));
    text.split(',').filter(|part| !part.is_empty()).map(parse).collect()
}
