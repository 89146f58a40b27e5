; JavaScript and TypeScript. The captures are explained in grammars.py.
(class_declaration name: (_) @name) @def.class
(class name: (_) @name) @def.class
(function_declaration name: (_) @name) @def.function
(generator_function_declaration name: (_) @name) @def.function
(method_definition name: (_) @name) @def.method
(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression) (class)]) @def.function
(program (lexical_declaration (variable_declarator name: (identifier) @name) @def.variable))
(program (variable_declaration (variable_declarator name: (identifier) @name) @def.variable))
(program (export_statement (lexical_declaration (variable_declarator name: (identifier) @name) @def.variable)))
(pair key: (property_identifier) @name value: [(arrow_function) (function_expression)]) @def.method
(assignment_expression left: (member_expression property: (property_identifier) @name)
  right: [(arrow_function) (function_expression)]) @def.function
(assignment_expression left: (member_expression object: (this) property: (property_identifier) @name)) @def.attribute
(call_expression function: (identifier) @call)
(new_expression constructor: (identifier) @call)
(call_expression function: (member_expression object: (this) property: (property_identifier) @own))
(call_expression function: (member_expression property: (property_identifier) @member))
(import_statement source: (string) @module)
(identifier) @ref
(property_identifier) @ref
