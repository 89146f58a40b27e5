; C. The captures are explained in grammars.py.
(function_definition declarator: (function_declarator declarator: (identifier) @name)) @def.function
(function_definition declarator: (pointer_declarator declarator:
  (function_declarator declarator: (identifier) @name))) @def.function
(declaration declarator: (function_declarator declarator: (identifier) @name)) @def.function
(declaration declarator: (pointer_declarator declarator:
  (function_declarator declarator: (identifier) @name))) @def.function
(struct_specifier name: (_) @name body: (_)) @def.struct
(union_specifier name: (_) @name body: (_)) @def.struct
(enum_specifier name: (_) @name body: (_)) @def.enum
(enumerator name: (_) @name) @def.field
(type_definition declarator: (type_identifier) @name) @def.type
(preproc_def name: (_) @name) @def.macro
(preproc_function_def name: (_) @name) @def.macro
(translation_unit (declaration declarator: (init_declarator declarator: (identifier) @name)) @def.variable)
(translation_unit (declaration declarator: (identifier) @name) @def.variable)
(field_declaration declarator: (field_identifier) @name) @def.field
(call_expression function: (identifier) @call)
(call_expression function: (field_expression field: (field_identifier) @member))
(preproc_include path: (_) @module)
(identifier) @ref
(field_identifier) @ref
(type_identifier) @ref
