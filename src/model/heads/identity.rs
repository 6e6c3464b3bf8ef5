//! Which model heads were trained for, as a short text that can be compared.

use crate::model::Checkpoint;

/// Hexadecimal hash (FNV-1a, 64 bit) of what heads depend on: the sizes and constants of the model and its chat template.
///
/// It is the same for every file format and quantisation of a model: it leaves out what writers of files disagree on (context,
/// end tokens, rotary scaling). Bits of floats are hashed, so it is the same on every machine.
pub fn model_identity(checkpoint: &Checkpoint) -> String {
    let config = &checkpoint.config;
    let text = format!(
        "{} {} {} {} {} {} {} {} {:08x} {:08x} {} {}\n{}",
        config.architecture.name(),
        config.hidden_size,
        config.intermediate_size,
        config.num_hidden_layers,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.vocab_size,
        config.rms_norm_eps.to_bits(),
        config.rope_theta.to_bits(),
        config.tie_word_embeddings,
        config.attention_bias,
        checkpoint.chat_template.as_deref().unwrap_or_default().trim(),
    );
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{hash:016x}")
}
