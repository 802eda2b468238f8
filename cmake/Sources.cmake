# Every source of the core, one list a layer; paths are in csrc.
set(LLMI_CORE_SOURCES
  core/aligned.cc core/cpu_features.cc core/huge_arena.cc core/json.cc core/json_cursor.cc core/json_fields.cc
  core/json_lexer.cc core/mpi_link.cc core/rank_group.cc core/stage_link.cc core/sha256.cc core/system_limits.cc core/thread_pool.cc core/utf8.cc
  io/gguf.cc io/input_file.cc io/model_files.cc io/safetensors.cc
  kernels/ops/attention.cc kernels/ops/attention_step.cc kernels/ops/attention_weights.cc kernels/ops/embedding.cc kernels/ops/experts.cc kernels/ops/activation.cc kernels/ops/gated_linear.cc kernels/ops/linear.cc kernels/ops/linear_step.cc kernels/ops/probe.cc
  kernels/ops/conv.cc kernels/ops/state.cc kernels/ops/kv_copy.cc kernels/ops/linear_input.cc kernels/ops/norm.cc kernels/ops/picked_attention.cc kernels/ops/rope.cc kernels/ops/route.cc kernels/ops/recurrence.cc kernels/ops/row_ops.cc kernels/ops/top_candidates.cc kernels/dispatch/tables.cc kernels/ops/vocab.cc
  kernels/cuda/cublas_lt.cc kernels/cuda/matrix_probe.cc kernels/cuda/nccl.cc
  kernels/cpu/reference/attention.cc kernels/cpu/reference/bound_scores.cc kernels/cpu/reference/embedding.cc
  kernels/cpu/reference/activation.cc kernels/cpu/reference/conv.cc kernels/cpu/reference/kv_write.cc
  kernels/cpu/reference/linear.cc kernels/cpu/reference/probe.cc kernels/cpu/reference/quantize_rows.cc
  kernels/cpu/reference/norm.cc kernels/cpu/reference/recurrence.cc kernels/cpu/reference/rope.cc kernels/cpu/reference/route.cc kernels/cpu/reference/row_ops.cc kernels/cpu/reference/vocab.cc
  cache/block_pool.cc cache/kv_cache.cc cache/key_bounds.cc cache/kv_groups.cc cache/kv_saved.cc cache/kv_swap.cc cache/page_events.cc cache/prefix_folder.cc
  cache/prefix_tree.cc cache/saved_block.cc cache/state_pool.cc
  model/checkpoints/awq.cc model/checkpoints/bitsandbytes.cc model/checkpoints/checkpoint.cc model/checkpoints/codes.cc
  model/checkpoints/compressed_tensors.cc model/checkpoints/fp8.cc model/checkpoints/gptq.cc
  model/checkpoints/matrix.cc model/checkpoints/mxfp4.cc model/checkpoints/parts.cc model/checkpoints/registry.cc model/checkpoints/scheme.cc
  model/checkpoints/tensor_list.cc model/checkpoints/torchao.cc
  model/attention_capture.cc model/attention_layer.cc model/batch_bytes.cc model/decoder.cc model/decoder_head.cc model/decoder_ranks.cc model/decoder_stages.cc model/stage_calls.cc model/eagle.cc model/eagle_loader.cc model/error_feedback.cc model/drafter_tensors.cc model/medusa.cc model/medusa_loader.cc model/dequantize.cc model/expert_layer.cc model/expert_use.cc model/layer_input.cc model/head_tiles.cc model/work.cc
  model/file_kind.cc model/grid_blocks.cc model/grids.cc model/inert.cc model/input_sums.cc model/latent_attention.cc model/layer_pass.cc model/loader.cc model/mixer.cc model/mlp_layer.cc model/pack.cc
  model/position_values.cc model/quantize.cc model/rank_attention.cc model/rank_calls.cc model/rank_mixers.cc model/rank_plan.cc model/ranks.cc model/recurrence_layer.cc model/rope_table.cc model/scale_search.cc model/short_conv_layer.cc model/steering.cc model/sparse_attention.cc model/spec.cc model/spec_check.cc model/stored_matrix.cc model/super_blocks.cc
  model/tensor_slots.cc model/weights.cc model/workspace.cc
  sampling/contrast.cc sampling/edits.cc sampling/law.cc sampling/logprobs.cc sampling/params.cc sampling/repetition.cc
  sampling/state.cc sampling/steps.cc sampling/filters/adaptive.cc sampling/filters/mirostat.cc
  sampling/filters/ranked.cc sampling/filters/row.cc sampling/filters/temperature.cc
  sampling/filters/thresholds.cc sampling/filters/typical.cc
  constraint/grammar_constraint.cc constraint/grammar_library.cc constraint/grammar_vocabulary.cc constraint/thinking_budget.cc
  scheduler/scheduler.cc
  speculative/acceptance_record.cc speculative/corpus_counts.cc speculative/corpus_drafter.cc speculative/corpus_table.cc speculative/cost_curve.cc
  speculative/draft.cc speculative/head_drafter.cc speculative/hidden_log.cc speculative/forced_drafter.cc speculative/likeliest.cc speculative/lookahead.cc
  speculative/node_choice.cc speculative/node_rates.cc speculative/prompt_lookup.cc speculative/recorded_drafter.cc speculative/sized_union.cc
  speculative/token_recycling.cc
  speculative/trained_head.cc speculative/union_drafter.cc speculative/verify.cc
  engine/active_requests.cc engine/ahead.cc engine/batch.cc engine/command_queue.cc
  engine/costs.cc engine/detokenizer.cc engine/emit.cc engine/engine.cc engine/inbox.cc engine/lab.cc engine/lab_rows.cc
  engine/lifetime.cc engine/open_engine.cc engine/options.cc engine/rank_worker.cc engine/request_limits.cc engine/saved_prefixes.cc engine/scheduling.cc engine/simulation.cc engine/sizing.cc engine/step_recorder.cc engine/step_replay.cc
  engine/stats_collector.cc engine/step.cc engine/stop_matcher.cc engine/trace.cc engine/verification.cc
  engine/beams/candidates.cc engine/beams/group.cc engine/beams/hypotheses.cc engine/beams/records.cc engine/beams/rows.cc
  engine/beams/steps.cc
  engine/constraints/constraint_masks.cc engine/constraints/sample_constraint.cc
  engine/contrast/cosine_index.cc
  engine/drafting/draft_choice.cc engine/drafting/draft_walk.cc engine/drafting/drafting.cc engine/drafting/eagle_runner.cc engine/drafting/head_tree.cc engine/drafting/head_worth.cc engine/drafting/hidden_keeper.cc engine/drafting/history.cc engine/drafting/medusa_runner.cc engine/drafting/node_lengths.cc engine/drafting/walk.cc
  engine/rows/combined_rows.cc engine/rows/contrast_rows.cc engine/rows/device_draws.cc engine/rows/judge.cc engine/rows/plan.cc engine/rows/prepared_rows.cc engine/rows/row_heads.cc
  engine/rows/row_processor.cc engine/rows/user_processors.cc
  model/row_products.cc)

set(LLMI_CUDA_SOURCES
  kernels/cuda/cuda_device.cu kernels/cuda/matrix_products.cu kernels/cuda/stream_nibbles.cu kernels/cuda/stream_bytes.cu
  kernels/cuda/stream_super.cu kernels/cuda/stream_tables.cu kernels/cuda/stream_gated_nibbles.cu kernels/cuda/stream_gated_super.cu
  kernels/cuda/stream_gated_tables.cu kernels/cuda/prompt_linear.cu kernels/cuda/prompt_attention.cu
  kernels/cuda/stream_float.cu kernels/cuda/spans_floats.cu kernels/cuda/spans_bytes.cu kernels/cuda/bf16_attention.cu)
set(LLMI_NO_CUDA_SOURCES kernels/no_cuda/cuda_device.cc)

set(LLMI_BINDING_SOURCES
  bindings/module.cpp bindings/bind_engine.cpp bindings/bind_constraint.cpp bindings/bind_drafters.cpp bindings/bind_errors.cpp bindings/bind_files.cpp
  bindings/bind_records.cpp bindings/bind_requests.cpp bindings/bind_replay.cpp bindings/bind_simulation.cpp bindings/bind_speculation.cpp bindings/bind_system.cpp
  bindings/bind_compress.cpp bindings/bind_lab.cpp bindings/bind_prefixes.cpp bindings/bind_ranks.cpp bindings/engine_handle.cpp bindings/engine_options.cpp bindings/gil.cpp bindings/held_sequence.cpp bindings/py_drafter.cpp bindings/py_constraint.cpp bindings/py_hooks.cpp)

# What tests and benchmarks alone need: the emulated device, one that runs no kernel, and their bindings.
set(LLMI_TESTING_CORE_SOURCES kernels/cuda/emulated_device.cc kernels/cuda/null_device.cc)
set(LLMI_NO_TESTING_CORE_SOURCES kernels/no_cuda/emulated_device.cc)
set(LLMI_TESTING_BINDING_SOURCES
  bindings/bind_device_probes.cpp bindings/bind_testing.cpp bindings/bind_testing_attention.cpp bindings/bind_testing_cache.cpp bindings/bind_testing_constraints.cpp
  bindings/bind_testing_decoder.cpp bindings/bind_testing_eagle.cpp bindings/bind_testing_experts.cpp bindings/bind_testing_linear.cpp bindings/bind_testing_mixers.cpp bindings/bind_testing_plans.cpp bindings/bind_testing_rows.cpp
  bindings/bind_testing_sampling.cpp bindings/bind_testing_scheduler.cpp bindings/bind_testing_speculative.cpp
  bindings/bind_testing_threads.cpp)
set(LLMI_NO_TESTING_BINDING_SOURCES bindings/bind_no_testing.cpp)
