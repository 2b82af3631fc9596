use super::*;

use nodelb_core::model::addr::{Addr, Protocol};

#[test]
fn the_number_of_words_is_a_power_of_two_between_its_limits() {
    let sizes = [0, 64, 16_384, 65_536, 65_540, u32::MAX].map(words);
    assert_eq!(sizes, [512, 512, 4_096, 16_384, 32_768, 131_072]);
}

/// The programs never set `READY`.
#[test]
fn ports_share_the_63_bits_below_ready() {
    let mut counts = [0; 64];
    (0..=u16::MAX).for_each(|port| counts[bit(port).trailing_zeros() as usize] += 1);
    assert_eq!(counts[63], 0);
    assert!(counts[..63].iter().all(|count| (900..1_200).contains(count)), "{counts:?}");
}

#[test]
fn neighbouring_addresses_share_few_words() {
    let address = |host: u32| L4Addr::new(Addr::from(std::net::IpAddr::from(host.to_be_bytes())), 80, Protocol::Tcp);
    let mut counts = [0; 512];
    (0x0a60_0000..0x0a60_0800).for_each(|host| counts[index(Side::Arriving, &address(host), 512)] += 1);
    assert!(counts.iter().all(|count| *count < 20), "{counts:?}");
}
