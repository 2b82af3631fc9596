//! Non-interference: nothing that strangers send changes what honest parties observe. Each sequence is played twice on the
//! packet programs as `nodelb_programs` compiles them, with the strangers and without them. `PROPTEST_CASES=1000000 cargo test -p
//! nodelb-programs --test packet_interference` plays more sequences; `SEQUENCE_SEED=n` plays others.

#[cfg(test)]
#[expect(dead_code, reason = "a sequence needs only worlds")]
#[path = "packet_fixtures/case.rs"]
mod case;
#[cfg(test)]
#[path = "packet_interference/direct.rs"]
mod direct;
#[cfg(test)]
#[path = "packet_fixtures/frame.rs"]
mod frame;
#[cfg(test)]
#[path = "packet_interference/honest.rs"]
mod honest;
#[cfg(test)]
#[path = "packet_interference/lab.rs"]
mod lab;
#[cfg(test)]
#[path = "packet_interference/observed.rs"]
mod observed;
#[cfg(test)]
#[path = "packet_interference/on_host.rs"]
mod on_host;
#[cfg(test)]
#[path = "packet_fixtures/print.rs"]
mod print;
#[cfg(test)]
#[path = "packet_interference/property.rs"]
mod property;
#[cfg(test)]
#[path = "packet_interference/regressions.rs"]
mod regressions;
#[cfg(test)]
#[path = "packet_interference/rules.rs"]
mod rules;
#[cfg(test)]
#[path = "packet_interference/sequence.rs"]
mod sequence;
#[cfg(test)]
#[path = "packet_interference/socket.rs"]
mod socket;
#[cfg(test)]
#[path = "packet_interference/stack.rs"]
mod stack;
#[cfg(test)]
#[path = "packet_interference/strangers.rs"]
mod strangers;
#[cfg(test)]
#[path = "packet_interference/tag.rs"]
mod tag;
#[cfg(test)]
#[path = "packet_interference/wire.rs"]
mod wire;
#[cfg(test)]
#[path = "packet_fixtures/world.rs"]
mod world;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use crate::honest::{Act, COUNT};
use crate::property::{interference, trace, unanswered};
use crate::sequence::{Step, sequence};

/// A setting of the run.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// A runner with this seed, so that a failure can be repeated.
fn runner(cases: u32, seed: u64) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let most = u32::try_from(number("PROPTEST_MAX_SHRINK_ITERS", 8_192)).expect("a small number");
    let config = Config { cases, failure_persistence: None, max_shrink_iters: most, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

#[test]
fn strangers_change_nothing_that_honest_parties_observe() {
    let cases = u32::try_from(number("PROPTEST_CASES", 2_000)).unwrap();
    let seed = number("SEQUENCE_SEED", 1);
    let result = runner(cases, seed).run(&sequence(), |steps| {
        let difference = interference(&steps, None);
        prop_assert!(difference.is_empty(), "{}", difference);
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, steps)) => {
            panic!("SEQUENCE_SEED={seed}\n{reason}\n{steps:#?}\n{}", trace(&steps, None));
        }
        Err(other) => panic!("{other}"),
    }
}

/// Services take nothing from each other, nor from clients of no service: not from those that are masqueraded either.
#[test]
fn honest_parties_that_are_alone_get_their_answers() {
    let questions = proptest::collection::vec(0..COUNT, 1..40);
    let result = runner(200, number("SEQUENCE_SEED", 1)).run(&questions, |users| {
        let steps: Vec<Step> = users.into_iter().flat_map(|user| [Step::Do(user, Act::Ask), Step::Wait(500)]).collect();
        let unanswered = unanswered(&steps, None);
        prop_assert!(unanswered.is_empty(), "{}", unanswered);
        Ok(())
    });
    assert!(result.is_ok(), "{result:?}");
}
