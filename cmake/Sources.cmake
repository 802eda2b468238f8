# Every source of the core, one list a layer.
set(LLMI_CORE_SOURCES
  csrc/core/aligned.cc csrc/core/cpu_features.cc csrc/core/huge_arena.cc csrc/core/json.cc csrc/core/json_cursor.cc csrc/core/json_fields.cc
  csrc/core/json_lexer.cc csrc/core/system_limits.cc csrc/core/thread_pool.cc csrc/core/utf8.cc
  csrc/io/gguf.cc csrc/io/input_file.cc csrc/io/model_files.cc csrc/io/safetensors.cc
  csrc/kernels/ops/attention.cc csrc/kernels/ops/attention_weights.cc csrc/kernels/ops/embedding.cc csrc/kernels/ops/activation.cc csrc/kernels/ops/gated_linear.cc csrc/kernels/ops/linear.cc csrc/kernels/ops/probe.cc
  csrc/kernels/ops/kv_copy.cc csrc/kernels/ops/linear_input.cc csrc/kernels/ops/norm.cc csrc/kernels/ops/rope.cc csrc/kernels/ops/row_ops.cc csrc/kernels/ops/top_candidates.cc csrc/kernels/dispatch/tables.cc csrc/kernels/ops/vocab.cc
  csrc/kernels/cuda/cublas_lt.cc
  csrc/kernels/cpu/reference/attention.cc csrc/kernels/cpu/reference/embedding.cc
  csrc/kernels/cpu/reference/activation.cc csrc/kernels/cpu/reference/kv_write.cc
  csrc/kernels/cpu/reference/linear.cc csrc/kernels/cpu/reference/probe.cc csrc/kernels/cpu/reference/quantize_rows.cc
  csrc/kernels/cpu/reference/norm.cc csrc/kernels/cpu/reference/rope.cc csrc/kernels/cpu/reference/row_ops.cc csrc/kernels/cpu/reference/vocab.cc
  csrc/cache/block_pool.cc csrc/cache/kv_cache.cc csrc/cache/kv_groups.cc csrc/cache/kv_swap.cc csrc/cache/prefix_tree.cc
  csrc/model/checkpoints/awq.cc csrc/model/checkpoints/bitsandbytes.cc csrc/model/checkpoints/checkpoint.cc csrc/model/checkpoints/codes.cc
  csrc/model/checkpoints/compressed_tensors.cc csrc/model/checkpoints/fp8.cc csrc/model/checkpoints/gptq.cc
  csrc/model/checkpoints/matrix.cc csrc/model/checkpoints/parts.cc csrc/model/checkpoints/registry.cc csrc/model/checkpoints/scheme.cc
  csrc/model/checkpoints/tensor_list.cc csrc/model/checkpoints/torchao.cc
  csrc/model/attention_capture.cc csrc/model/attention_layer.cc csrc/model/decoder.cc csrc/model/decoder_head.cc csrc/model/eagle.cc csrc/model/eagle_loader.cc csrc/model/drafter_tensors.cc csrc/model/medusa.cc csrc/model/medusa_loader.cc csrc/model/dequantize.cc csrc/model/head_tiles.cc csrc/model/work.cc
  csrc/model/file_kind.cc csrc/model/grid_blocks.cc csrc/model/grids.cc csrc/model/inert.cc csrc/model/layer_pass.cc csrc/model/loader.cc csrc/model/mlp_layer.cc csrc/model/pack.cc
  csrc/model/position_values.cc csrc/model/quantize.cc csrc/model/rope_table.cc csrc/model/steering.cc csrc/model/spec.cc csrc/model/spec_check.cc csrc/model/super_blocks.cc
  csrc/model/tensor_slots.cc csrc/model/weights.cc csrc/model/workspace.cc
  csrc/sampling/contrast.cc csrc/sampling/edits.cc csrc/sampling/law.cc csrc/sampling/logprobs.cc csrc/sampling/params.cc csrc/sampling/repetition.cc
  csrc/sampling/state.cc csrc/sampling/steps.cc csrc/sampling/filters/adaptive.cc csrc/sampling/filters/mirostat.cc
  csrc/sampling/filters/ranked.cc csrc/sampling/filters/row.cc csrc/sampling/filters/temperature.cc
  csrc/sampling/filters/thresholds.cc csrc/sampling/filters/typical.cc
  csrc/constraint/grammar_constraint.cc csrc/constraint/grammar_library.cc csrc/constraint/grammar_vocabulary.cc csrc/constraint/thinking_budget.cc
  csrc/scheduler/scheduler.cc
  csrc/speculative/acceptance_record.cc csrc/speculative/corpus_counts.cc csrc/speculative/corpus_drafter.cc csrc/speculative/corpus_table.cc csrc/speculative/cost_curve.cc
  csrc/speculative/draft.cc csrc/speculative/head_drafter.cc csrc/speculative/forced_drafter.cc csrc/speculative/likeliest.cc csrc/speculative/lookahead.cc
  csrc/speculative/node_choice.cc csrc/speculative/node_rates.cc csrc/speculative/prompt_lookup.cc csrc/speculative/recorded_drafter.cc csrc/speculative/sized_union.cc
  csrc/speculative/token_recycling.cc
  csrc/speculative/trained_head.cc csrc/speculative/union_drafter.cc csrc/speculative/verify.cc
  csrc/engine/active_requests.cc csrc/engine/ahead.cc csrc/engine/batch.cc csrc/engine/command_queue.cc
  csrc/engine/costs.cc csrc/engine/detokenizer.cc csrc/engine/emit.cc csrc/engine/engine.cc csrc/engine/inbox.cc csrc/engine/lab.cc csrc/engine/lab_rows.cc
  csrc/engine/lifetime.cc csrc/engine/open_engine.cc csrc/engine/options.cc csrc/engine/request_limits.cc csrc/engine/scheduling.cc csrc/engine/sizing.cc
  csrc/engine/stats_collector.cc csrc/engine/step.cc csrc/engine/stop_matcher.cc csrc/engine/trace.cc csrc/engine/verification.cc
  csrc/engine/beams/candidates.cc csrc/engine/beams/forced_words.cc csrc/engine/beams/group.cc csrc/engine/beams/hypotheses.cc csrc/engine/beams/records.cc
  csrc/engine/beams/rows.cc csrc/engine/beams/steps.cc
  csrc/engine/constraints/constraint_masks.cc csrc/engine/constraints/sample_constraint.cc
  csrc/engine/contrast/hidden_rows.cc
  csrc/engine/drafting/draft_choice.cc csrc/engine/drafting/draft_walk.cc csrc/engine/drafting/drafting.cc csrc/engine/drafting/eagle_runner.cc csrc/engine/drafting/head_worth.cc csrc/engine/drafting/history.cc csrc/engine/drafting/medusa_runner.cc csrc/engine/drafting/node_lengths.cc csrc/engine/drafting/walk.cc
  csrc/engine/rows/combined_rows.cc csrc/engine/rows/contrast_rows.cc csrc/engine/rows/device_draws.cc csrc/engine/rows/judge.cc csrc/engine/rows/plan.cc csrc/engine/rows/prepared_rows.cc csrc/engine/rows/row_heads.cc
  csrc/engine/rows/row_processor.cc csrc/engine/rows/user_processors.cc)

set(LLMI_CUDA_SOURCES csrc/kernels/cuda/cuda_device.cu csrc/kernels/cuda/matrix_products.cu)
set(LLMI_NO_CUDA_SOURCES csrc/kernels/no_cuda/cuda_device.cc)

set(LLMI_BINDING_SOURCES
  csrc/bindings/module.cpp csrc/bindings/bind_engine.cpp csrc/bindings/bind_constraint.cpp csrc/bindings/bind_drafters.cpp csrc/bindings/bind_errors.cpp csrc/bindings/bind_files.cpp
  csrc/bindings/bind_records.cpp csrc/bindings/bind_requests.cpp csrc/bindings/bind_speculation.cpp csrc/bindings/bind_system.cpp
  csrc/bindings/bind_lab.cpp csrc/bindings/engine_handle.cpp csrc/bindings/engine_options.cpp csrc/bindings/gil.cpp csrc/bindings/held_sequence.cpp csrc/bindings/py_drafter.cpp csrc/bindings/py_constraint.cpp csrc/bindings/py_hooks.cpp)

# What tests and benchmarks alone need: the emulated device, questions to matrix instructions, and their bindings.
set(LLMI_TESTING_CORE_SOURCES csrc/kernels/cuda/emulated_device.cc csrc/kernels/cuda/matrix_probe.cc)
set(LLMI_NO_TESTING_CORE_SOURCES csrc/kernels/no_cuda/emulated_device.cc)
set(LLMI_TESTING_BINDING_SOURCES
  csrc/bindings/bind_device_probes.cpp csrc/bindings/bind_testing.cpp csrc/bindings/bind_testing_attention.cpp csrc/bindings/bind_testing_cache.cpp csrc/bindings/bind_testing_constraints.cpp
  csrc/bindings/bind_testing_decoder.cpp csrc/bindings/bind_testing_eagle.cpp csrc/bindings/bind_testing_linear.cpp csrc/bindings/bind_testing_plans.cpp csrc/bindings/bind_testing_rows.cpp
  csrc/bindings/bind_testing_sampling.cpp csrc/bindings/bind_testing_scheduler.cpp csrc/bindings/bind_testing_speculative.cpp
  csrc/bindings/bind_testing_threads.cpp)
set(LLMI_NO_TESTING_BINDING_SOURCES csrc/bindings/bind_no_testing.cpp)
